"""An `EngineClient` for an engine in this process, with what a replica reports of each call."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import msgspec

from serve_app.api.dialect import dialect_of
from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError, stream_failed, unsupported_feature
from serve_app.cancellation import is_cancelled
from serve_app.engine.adapters import Adapters
from serve_app.engine.api_errors import from_exception, from_frame, lost_engine, not_continuable
from serve_app.engine.chat_operations import ReplyOrFrames, Serving, chat, complete, detokenize, tokenize
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.generate_operation import generate
from serve_app.engine.messages_operation import count_tokens, create_message
from serve_app.engine.pooling_operations import TASKS, pool
from serve_app.engine.responses_operation import create_response
from serve_app.engine.speech_operations import SPEECH, transcribe
from serve_app.ledger.meter import UsageMeter
from serve_app.patches.vllm_compat import killed_from_outside
from serve_app.settings.tree import ModelSettings
from serve_app.telemetry.request_log import RequestLog
from serve_app.wire.data_plane import ENGINE_DEAD, ENGINE_DIED, ENGINE_KILLED, Call
from serve_app.wire.request_line import RequestLine

logger = logging.getLogger("ray.serve")

_OPERATIONS: dict[str, Callable[[Serving, EngineCall], Awaitable[ReplyOrFrames]]] = {
    "chat_completions": chat,
    "completions": complete,
    "responses": create_response,
    "messages": create_message,
    "count_tokens": count_tokens,
    "tokenize": tokenize,
    "detokenize": detokenize,
    "generate": generate,
    **dict.fromkeys(TASKS, pool),
    **dict.fromkeys(SPEECH, transcribe),
}


class LocalEngine:
    """Runs API calls on one engine and renders the bytes that go to the client.

    Args:
        serving: vLLM's handlers around the engine.
        model: The settings the engine was started with.
        on_error: Called with the error of every failed call, before or within a stream.
        on_call: Called with the message of each call.
        model_identity: See `weights.model_identity`. The engine continues only streams of the same model.
        adapters: Loads LoRA adapters; None if the engine was started without LoRA.
    """

    def __init__(
        self,
        serving: Serving,
        model: ModelSettings,
        on_error: Callable[[ApiError], None],
        on_call: Callable[[Call], None] = lambda _: None,
        model_identity: str = "",
        adapters: Adapters | None = None,
    ) -> None:
        self.request_log: RequestLog | None = None
        """Gets a line for each ended request. None during the warm-up and without a request log."""
        self.meter: UsageMeter | None = None
        """Counts the usage of each call. None during the warm-up and without a ledger."""
        self._model, self._variant = model.name, model.variant
        self._model_identity = model_identity
        self._adapters = adapters
        self._unlogged = False
        self._on_error = on_error
        self._on_call = on_call
        self._engine = serving.engine
        self._serving = replace(serving, max_sequences=model.max_sequences_per_request)

    @asynccontextmanager
    async def call(self, call: EngineCall) -> AsyncIterator[EngineReply]:
        """Run one operation, or continue its stream. Closing the context aborts the generation.

        Raises:
            ApiError: for any failure before the first data; 409 for a stream that cannot be continued.
        """
        if self._engine.errored:
            raise lost_engine(ENGINE_DEAD)
        begun = call.message.continuation
        if begun is not None and not begun.is_of(self._model_identity, self._serving.vocabulary):
            raise not_continuable()
        call.model = self._model
        self._on_call(call.message)
        call.begin()
        async with AsyncExitStack() as ending:
            if (meter := self.meter) is not None:
                ending.callback(meter.end, meter.begin(call.caller, call, moved=begun is not None))
            ending.callback(call.end)
            try:
                if (adapter := call.message.adapter) is not None:
                    if self._adapters is None:
                        raise unsupported_feature("LoRA adapters")
                    await self._adapters.take(adapter)
                    ending.callback(self._adapters.release, adapter)
                answer = await _OPERATIONS[call.message.operation](self._serving, call)
                if isinstance(answer, EngineReply):
                    if begun is not None:
                        raise not_continuable()
                    reply = answer
                    call.status = reply.status
                    call.complete()
                else:
                    frames = call.new_frames(answer)
                    # The engine frees a sequence only when its generator is closed.
                    if hasattr(frames, "aclose"):
                        ending.push_async_callback(frames.aclose)
                    reply = await self._open_stream(frames, call)
            except Exception as error:
                failure = self._lost(call) if self._engine.errored else from_exception(error)
                if not is_cancelled():  # vLLM's handlers turn a cancellation into an error
                    call.fail(failure.status)
                self._on_error(failure)
                raise failure from error
            else:
                call.release_body()
                yield reply
            finally:
                self._log(call)

    async def _open_stream(self, frames: AsyncIterator[str | bytes], call: EngineCall) -> EngineReply:
        dialect = dialect_of(call.message.operation)
        prelude, first = b"", _bytes(await anext(frames))
        while first.startswith(dialect.prelude):  # the status waits for the first output
            prelude += first
            first = _bytes(await anext(frames))
        call.note_first_event()
        if first.startswith(dialect.error_frame):
            raise from_frame(first)
        call.status = 200
        rest = self._rest(prelude + first, frames, call)
        return EngineReply(200, stream=rest, delivered=call.delivered)

    async def _rest(
        self, first: bytes, frames: AsyncIterator[str | bytes], call: EngineCall
    ) -> AsyncIterator[bytes]:
        dialect = dialect_of(call.message.operation)
        yield first if not dialect.has_usage(first) else with_latency(call, first)
        sent = first
        try:
            async for frame in frames:
                data = _bytes(frame)
                if data.startswith(dialect.error_frame):
                    error = self._lost(call) if self._engine.errored else from_frame(data)
                    call.fail(error.status)
                    self._on_error(error)
                    yield dialect.last_frames(error, call, sent)
                    break
                if dialect.has_usage(data):
                    data = with_latency(call, data)
                sent = data
                yield data
        except Exception as error:
            # The engine has died, or this code has a bug. If the error were raised, the connection would
            # close, and the ingress would report a lost replica to the client.
            failure = self._lost(call) if self._engine.errored else stream_failed()
            logger.error("a stream failed: %s", failure.code, exc_info=error)
            call.fail(failure.status)
            self._on_error(failure)
            yield dialect.last_frames(failure, call, sent)
            return
        call.complete()

    def _lost(self, call: EngineCall) -> ApiError:
        call.lost = ENGINE_KILLED if killed_from_outside(self._engine) else ENGINE_DIED
        return lost_engine(call.lost)

    def _log(self, call: EngineCall) -> None:
        if self.request_log is None:
            return
        try:
            line = log_line(call, self._variant)
            if line is not None:
                self.request_log.add(line)
        except Exception:
            # If the error were raised, the client would lose its answer. Logged once, because it may recur
            # with every request.
            if not self._unlogged:
                self._unlogged = True
                logger.exception("a request could not be logged; the request log is incomplete")


def with_latency(call: EngineCall, frame: bytes) -> bytes:
    """Return the final usage frame of a stream with a `latency` field; any other frame unchanged.

    Only the usage frame has an empty `choices` (`Dialect.has_usage`). The field also has the number of
    cached prompt tokens, which vLLM's usage lacks by default. For a stream that has moved, the field
    covers the tokens of all engines.
    """
    document = msgspec.json.decode(frame[len(b"data: ") :])
    usage = document.get("usage")
    if not usage:
        return frame
    tokens = usage.get("completion_tokens", 0)
    figures = call.latency(call.first_token, tokens, time.perf_counter()) | call.engine_times()
    # An engine that continues a stream may also have other engines' output tokens in its cache.
    figures["cached_tokens"] = min(call.cached_tokens(), usage.get("prompt_tokens", 0))
    if call.message.continuation is not None and call.message.continuation.moves:
        figures["moves"] = call.message.continuation.moves
    document["latency"] = figures
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def log_line(call: EngineCall, variant: str = "") -> RequestLine | None:
    """Return the log line of a call that has just ended; None if it never was in the engine.

    The tokens of engines that began the stream count as input.
    """
    if not call.sequences:
        return None
    message, begun = call.message, call.message.continuation
    # vLLM measures a first token from the arrival of its sequence, which is in Unix time.
    first_at = min(
        (
            sequence.stats.arrival_time + sequence.stats.first_token_latency
            for sequence in call.sequences
            if sequence.stats.first_token_latency > 0.0
        ),
        default=None,
    )
    ttft = None if first_at is None else round(first_at - call.arrived_at, 6)
    return RequestLine(
        arrived_at=round(call.arrived_at, 6),
        model=call.model,
        operation=message.operation,
        request_id=message.request_id,
        input_tokens=call.prompt_tokens(),
        cached_tokens=call.cached_tokens(),
        output_tokens=call.output_tokens(),
        sequences=len(call.sequences),
        ttft_s=ttft if begun is None else begun.ttft_s,
        e2e_s=round(call.waited_s, 6),
        held_s=round(message.queued_s, 6),
        status=call.status,
        outcome=call.outcome,
        trace_id=None if call.trace is None else call.trace.trace_id,
        expected_cached_tokens=message.expected_cached_tokens,
        key=call.caller.key,
        lane=call.caller.lane,
        alias=message.alias,
        adapter=call.adapter_name,
        lost_s=round(message.lost_s, 6),
        variant=variant,
    )


def _bytes(frame: str | bytes) -> bytes:
    return frame if isinstance(frame, bytes) else frame.encode()
