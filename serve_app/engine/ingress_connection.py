"""One ingress replica's connection to an engine replica: calls, and their answers in one message per step."""

import asyncio
import hmac
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from serve_app.api.engine_client import OPERATIONS, EngineClient, EngineReply, EngineRequest, RequestState
from serve_app.api.errors import TRACE_ID, ApiError, internal_error
from serve_app.api.trace_context import TraceContext
from serve_app.wire.continuation import DeliveredTokens
from serve_app.wire.data_plane import (
    CREDIT_BYTES,
    HELLO_BYTES,
    LOSSES,
    MOST_BLOCKS,
    MOST_BYTES,
    VERSION,
    Answer,
    Beat,
    Call,
    Cancel,
    Credit,
    FromIngress,
    Hello,
    Piece,
    Prefix,
    Refusal,
    Step,
)
from serve_app.wire.frames import Frames

logger = logging.getLogger("ray.serve")


@dataclass(slots=True, eq=False)
class _Stream:
    """One call, and the data that wait for the end of the step."""

    number: int
    credit: int = CREDIT_BYTES
    """Bytes that the ingress still accepts for this stream."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    delivered: DeliveredTokens | None = None
    outputs: int = -1
    """The number of delivered outputs when data were last added."""
    data: list[bytes] = field(default_factory=list)
    ended: EngineRequest | None = None
    """The request, once its answer is complete."""
    task: asyncio.Task[None] | None = None

    def begins_output(self) -> bool:
        """Return whether the next data begin a new output of the engine.

        An output may have several frames, and its tokens count as delivered with the last frame. If the
        frames were sent apart, an engine that continues the stream would send some frames again.
        """
        before, self.outputs = self.outputs, 0 if self.delivered is None else self.delivered.outputs
        return self.delivered is None or before != self.outputs

    def cancel(self) -> None:
        """End the call."""
        if self.task is not None:
            self.task.cancel()

    def piece(self) -> Piece:
        """Return the waiting data as a message, and clear the data."""
        data = b"".join(self.data)
        self.data.clear()
        tokens = [] if self.delivered is None else self.delivered.take()
        piece = Piece(self.number, data, [(sequence, list(ids)) for sequence, ids in tokens])
        if (ended := self.ended) is not None:
            piece.last, piece.lost = True, ended.state.lost
            piece.cached_tokens = ended.state.cached_tokens
            piece.prompt_tokens = ended.state.prompt_tokens
        return piece


class IngressConnection:
    """Runs the calls of one ingress replica.

    An engine step wakes the tasks of many streams. Their data are collected until the event loop has run
    these tasks, and are sent in one message. A first token does not wait for another step.

    Args:
        engine: Runs the calls.
        token: The token that the ingress must send first.
        beat: Makes the first heartbeat, which answers the token.
        closed: Called with this connection when it has ended.
        cached: Called with this connection and the prefix of a prompt that the engine is about to cache.
        met: Called with this connection when the ingress has sent the token.
        refused: Called with the address of a caller without the token, and the reason for the refusal.
    """

    def __init__(
        self,
        engine: EngineClient,
        token: str,
        beat: Callable[[], Beat],
        closed: Callable[["IngressConnection"], None],
        cached: Callable[["IngressConnection", Prefix], None],
        met: Callable[["IngressConnection"], None],
        refused: Callable[[str, str], None],
    ) -> None:
        self.frames: Frames[FromIngress] = Frames(FromIngress, self._take, self._handle_loss)
        self.frames.on_writable = self._flush
        self.frames.most_bytes = HELLO_BYTES
        self._met = met
        self._refused = refused
        self.streams: dict[int, _Stream] = {}
        self._engine = engine
        self._token = token.encode()
        self._beat = beat
        self._closed = closed
        self._cached = cached
        self._of_others: deque[Prefix] = deque()
        self._blocks = 0
        """Blocks of the prefixes that other ingress replicas have sent since the last heartbeat."""
        self._known = False
        """Whether the caller has sent the token."""
        self._waiting: list[_Stream] = []
        """Streams with data to send."""

    def note(self, prefix: Prefix) -> None:
        """Keep a prefix from another ingress replica for the next heartbeat."""
        self._of_others.append(prefix)
        self._blocks += len(prefix.blocks) + 1
        while self._blocks > MOST_BLOCKS:
            self._blocks -= len(self._of_others.popleft().blocks) + 1

    def send_heartbeat(self, beat: Beat) -> None:
        """Send a heartbeat, with the prefixes since the last one if the ingress reads."""
        if self._known:
            noted = list(self._of_others) if self.frames.writable else []
            self.frames.send(msgspec.structs.replace(beat, prefixes=noted))
        self._of_others.clear()
        self._blocks = 0

    async def stop(self) -> None:
        """Close the connection, and wait until its calls have ended."""
        self._send_step()
        self.frames.close()
        running = [stream.task for stream in self.streams.values() if stream.task is not None]
        self._cancel_all()
        await asyncio.gather(*running, return_exceptions=True)

    def _take(self, message: FromIngress) -> None:
        if not self._known:
            self._meet(message)
        elif isinstance(message, Credit):
            if (stream := self.streams.get(message.stream)) is not None:
                stream.credit += message.amount
                stream.room.set()
        elif isinstance(message, Call):
            if message.prefix is not None:
                self._cached(self, message.prefix)
            stream = self.streams[message.stream] = _Stream(message.stream)
            stream.task = asyncio.create_task(self._run(stream, message))
            # A callback, because a task that is cancelled before its first step never runs its code.
            stream.task.add_done_callback(partial(self._forget_stream, message.stream))
        elif isinstance(message, Cancel) and (stream := self.streams.get(message.stream)) is not None:
            stream.cancel()

    def _forget_stream(self, number: int, _: asyncio.Task[None]) -> None:
        self.streams.pop(number, None)

    def _meet(self, message: FromIngress) -> None:
        if not isinstance(message, Hello) or message.version != VERSION:
            self._refuse(f"this engine replica speaks version {VERSION} of the data plane")
        elif not hmac.compare_digest(message.token.encode("utf-8", "surrogateescape"), self._token):
            self._refuse("the data-plane token is missing or wrong")
        else:
            self._known = True
            self.frames.most_bytes = MOST_BYTES
            self._met(self)
            self.frames.send(self._beat())

    def _refuse(self, reason: str) -> None:
        self._refused(self.frames.peer, reason)
        self.frames.send(Refusal(reason))
        self.frames.close()

    def cut_off(self, reason: str) -> None:
        """End the connection of a caller without the token, even if it has unsent data."""
        self._refuse(reason)
        self.frames.abort()

    def _handle_loss(self, error: Exception) -> None:
        if not self._known and self.frames.fault is not None:
            self._refused(self.frames.peer, str(error))
        self._cancel_all()
        self._closed(self)

    def _cancel_all(self) -> None:
        for stream in self.streams.values():
            stream.cancel()

    async def _run(self, stream: _Stream, call: Call) -> None:
        try:
            if call.operation not in OPERATIONS:
                raise ApiError(404, f"no operation {call.operation!r}")
            request = engine_request(call)
            TRACE_ID.set("" if request.trace is None else request.trace.trace_id)
            await self._answer(stream, request)
        except ApiError as error:
            lost = error.code if error.code in LOSSES else ""
            self._send(Answer(stream.number, error.status, dict(error.headers), error.body(), lost=lost))
        except Exception:
            logger.exception("request %s failed in the data plane", call.request_id)
            failure = internal_error()
            self._send(Answer(stream.number, failure.status, {}, failure.body()))

    async def _answer(self, stream: _Stream, request: EngineRequest) -> None:
        async with self._engine.call(request) as reply:
            head = Answer(stream.number, reply.status, dict(reply.headers), reply.body)
            if reply.stream is None:
                head.cached_tokens = request.state.cached_tokens
                head.prompt_tokens = request.state.prompt_tokens
                self._send(head)
                return
            head.streamed, head.continuable = True, reply.delivered is not None
            self._send(head)
            await self._send_stream(stream, reply, request)

    async def _send_stream(self, stream: _Stream, reply: EngineReply, request: EngineRequest) -> None:
        assert reply.stream is not None
        stream.delivered = reply.delivered
        farewell = b""

        def put(data: bytes) -> None:
            stream.credit -= len(data)
            self._put(stream, data)

        def write_now(data: bytes) -> bool:
            if stream.credit <= 0:
                return False
            if data:
                put(data)
            return True

        async for data in reply.stream:
            if request.state.lost:  # the client must not see an error if another engine can continue
                farewell += data
                continue
            if stream.begins_output():
                while stream.credit <= 0:  # an output may exceed the rest of the credit
                    stream.room.clear()
                    await stream.room.wait()
            put(data)
            request.state.write_now = write_now
        request.state.write_now = None
        stream.ended = request
        self._put(stream, farewell)

    def _put(self, stream: _Stream, data: bytes) -> None:
        if not stream.data:
            if not self._waiting:
                # Runs after the tasks of the other streams that the same step has woken.
                asyncio.get_running_loop().call_soon(self._flush)
            self._waiting.append(stream)
        stream.data.append(data)

    def _flush(self) -> None:
        if self.frames.writable:
            self._send_step()

    def _send(self, answer: Answer) -> None:
        self._send_step()  # waiting pieces come first
        self.frames.send(answer)

    def _send_step(self) -> None:
        if self._waiting:
            self.frames.send(Step([stream.piece() for stream in self._waiting]))
            self._waiting.clear()


def engine_request(call: Call) -> EngineRequest:
    """Return `call` as a request of this engine replica."""
    return EngineRequest(
        call.operation,  # type: ignore[arg-type]  # the caller has looked
        call.body,
        call.request_id,
        time.perf_counter() - call.waited_s,
        trace=TraceContext(call.traceparent, call.tracestate) if call.traceparent else None,
        cache_salt=call.cache_salt,
        continuation=call.continuation,
        expected_cached_tokens=call.expected_cached_tokens,
        state=RequestState(queued_s=call.queued_s),
    )
