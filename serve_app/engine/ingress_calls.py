"""The calls of one ingress replica on an engine replica, and their answers in one message per step."""

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from serve_app.api.engine_client import OPERATIONS, DeliveredTokens, EngineClient, EngineReply
from serve_app.api.errors import TRACE_ID, ApiError, internal_error
from serve_app.cancellation import only_own_cancellation
from serve_app.engine.continued_call import ContinuedCall
from serve_app.engine.engine_call import EngineCall
from serve_app.wire.data_plane import (
    CREDIT_BYTES,
    LOSSES,
    Answer,
    Call,
    FromIngress,
    Piece,
    Step,
)
from serve_app.wire.frames import Frames

logger = logging.getLogger("ray.serve")


@dataclass(slots=True, eq=False)
class _Stream:
    """One call, and the data that wait for the end of the step."""

    number: int
    background: bool
    """Whether the call is of the lane `background`."""
    credit: int = field(default_factory=lambda: CREDIT_BYTES)
    """Bytes that the ingress still accepts for this stream."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    delivered: DeliveredTokens | None = None
    outputs: int = -1
    """The number of delivered outputs when data were last added."""
    data: list[bytes] = field(default_factory=list)
    ended: EngineCall | None = None
    """The call, once its answer is complete."""
    task: asyncio.Task[None] | None = None

    def begins_output(self) -> bool:
        """Return whether the next data begin a new output of the engine.

        An output may have several frames, and its tokens count as delivered with the last frame. If the
        frames were sent apart, an engine that continues the stream would send some frames again.
        """
        before, self.outputs = self.outputs, 0 if self.delivered is None else self.delivered.outputs
        return self.delivered is None or before != self.outputs

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def piece(self) -> Piece:
        """Return the waiting data as a message, and clear the data."""
        data = b"".join(self.data)
        self.data.clear()
        tokens = [] if self.delivered is None else self.delivered.take()
        piece = Piece(self.number, data, [(sequence, list(ids)) for sequence, ids in tokens])
        if (ended := self.ended) is not None:
            piece.last, piece.lost, piece.counts = True, ended.lost, ended.counts
        return piece


class IngressCalls:
    """Runs the calls of one ingress replica, and sends their answers over its connection.

    An engine step wakes the tasks of many streams. Their data are collected until the event loop has run
    these tasks, and are sent in one message. A first token does not wait for another step.
    """

    def __init__(self, engine: EngineClient[EngineCall], frames: Frames[FromIngress]) -> None:
        self._engine = engine
        self._frames = frames
        frames.on_writable = self._flush
        self._open: dict[int, _Stream] = {}
        self._waiting: list[_Stream] = []
        """Streams with data to send."""

    def __len__(self) -> int:
        """Return the number of calls that have not ended."""
        return len(self._open)

    @property
    def background(self) -> int:
        """The number of these calls that are of the lane `background`."""
        return sum(stream.background for stream in self._open.values())

    def begin(self, message: Call) -> None:
        stream = self._open[message.stream] = _Stream(message.stream, message.lane == "background")
        stream.task = asyncio.create_task(self._run(stream, message))
        # A callback, because a task that is cancelled before its first step never runs its code.
        stream.task.add_done_callback(partial(self._forget, message.stream))

    def _forget(self, number: int, _: asyncio.Task[None]) -> None:
        self._open.pop(number, None)

    def add_credit(self, number: int, amount: int) -> None:
        """Let a stream send `amount` more bytes."""
        if (stream := self._open.get(number)) is not None:
            stream.credit += amount
            stream.room.set()

    def cancel(self, number: int) -> None:
        if (stream := self._open.get(number)) is not None:
            stream.cancel()

    def cancel_all(self) -> None:
        for stream in self._open.values():
            stream.cancel()

    async def stop(self) -> None:
        """Send what waits, close the connection, and wait until the calls have ended."""
        self._send_step()
        self._frames.close()
        running = [stream.task for stream in self._open.values() if stream.task is not None]
        self.cancel_all()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, stream: _Stream, message: Call) -> None:
        call = None
        try:
            if message.operation not in OPERATIONS:
                raise ApiError(404, f"no operation {message.operation!r}")
            begun = message.continuation
            call = EngineCall(message) if begun is None else ContinuedCall(message, begun)
            TRACE_ID.set("" if call.trace is None else call.trace.trace_id)
            with only_own_cancellation():
                await self._answer(stream, call)
        except ApiError as error:
            lost = error.code if error.code in LOSSES else ""
            answer = Answer(stream.number, error.status, dict(error.headers), error.body(), lost=lost)
            answer.counts = None if call is None else call.counts
            self._send(answer)
        except Exception:
            logger.exception("request %s failed in the data plane", message.request_id)
            failure = internal_error()
            self._send(Answer(stream.number, failure.status, {}, failure.body()))

    async def _answer(self, stream: _Stream, call: EngineCall) -> None:
        async with self._engine.call(call) as reply:
            head = Answer(stream.number, reply.status, dict(reply.headers), reply.body)
            if reply.stream is None:
                head.counts = call.counts
                self._send(head)
                return
            head.streamed, head.continuable = True, reply.delivered is not None
            head.prompts = replace(call.counts, output=None)
            self._send(head)
            await self._send_stream(stream, reply, call)

    async def _send_stream(self, stream: _Stream, reply: EngineReply, call: EngineCall) -> None:
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
            if call.lost:  # the client must not see an error if another engine can continue
                farewell += data
                continue
            if stream.begins_output():
                while stream.credit <= 0:  # an output may exceed the rest of the credit
                    stream.room.clear()
                    await stream.room.wait()
            put(data)
            call.write_now = write_now
        call.write_now = None
        stream.ended = call
        self._put(stream, farewell)

    def _put(self, stream: _Stream, data: bytes) -> None:
        if not stream.data:
            if not self._waiting:
                # Runs after the tasks of the other streams that the same step has woken.
                asyncio.get_running_loop().call_soon(self._flush)
            self._waiting.append(stream)
        stream.data.append(data)

    def _flush(self) -> None:
        if self._frames.writable:
            self._send_step()

    def _send(self, answer: Answer) -> None:
        self._send_step()  # waiting pieces come first
        self._frames.send(answer)

    def _send_step(self) -> None:
        if self._waiting:
            self._frames.send(Step([stream.piece() for stream in self._waiting]))
            self._waiting.clear()
