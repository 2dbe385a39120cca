"""Streams that another engine can continue, and streams that another engine began.

While a stream runs, its delivered tokens are recorded: the ids of the tokens whose events have been sent.
Another engine continues from these tokens. There, vLLM's front end sees the original request, unchanged. The
engine core gets the delivered tokens as outputs of its own (`continuation`). vLLM's handlers get them once
more as outputs of the engine, so that counts, parsers, half characters and partial stop strings are right.
The events that the handlers make of delivered tokens are dropped.

Greedy sampling continues with the same token as before, up to rounding: the delivered tokens are prefilled
together, and their keys and values may differ in the last bit. A seeded generator starts anew.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.api.engine_client import EngineRequest
from serve_app.engine.api_errors import ERROR_FRAME, not_continuable
from serve_app.engine.continuation import DELIVERED, advance
from serve_app.patches.vllm import Method, forward_at_once, wrap_add_request, wrap_generate
from serve_app.wire.continuation import DeliveredTokens

_CREATED = re.compile(rb'"created":\d+')  # inside a text the quotes would be escaped
_REPLAYED_PER_TURN = 16
"""Tokens replayed before other streams get a turn. vLLM's own encoder takes about 0.1 ms per token."""
_NOT_CONTINUED = (
    # Fields of vLLM's sampling parameters.
    "trace_decode_token_ids",
    "prompt_logprobs",
    "prompt_logprob_token_ids",
    "extra_args",  # for samplers outside vLLM
)

_current: ContextVar["ContinuableStream | None"] = ContextVar("continuable_stream", default=None)


class ContinuableStream:
    """The tokens that this engine generates for one stream: all, or those after the delivered tokens."""

    def __init__(self, request: EngineRequest) -> None:
        self.delivered: DeliveredTokens | None = None
        """The tokens generated here. None if no other engine can continue the stream."""
        self.encode: Callable[[RequestOutput], bytes] | None = None
        """Encodes an output as events. None if the events depend on more than the output."""
        self._request = request
        self._continuation = request.continuation
        delivered = () if request.continuation is None else request.continuation.tokens
        self._before = {index: list(tokens) for index, tokens in enumerate(delivered) if tokens}
        self._replaying = bool(self._before)
        self._replay: list[RequestOutput] = []
        self._ended: set[int] = set()
        """The sequences that ended with their delivered tokens."""
        # A parser of tool calls or reasoning may miss markers if several tokens come at once.
        self._one_by_one = request.operation == "chat_completions"
        self._generations = 0

    @classmethod
    def begin(cls, request: EngineRequest) -> "ContinuableStream":
        """Begin the stream for all generations of this task and its child tasks."""
        stream = cls(request)
        _current.set(stream)
        return stream

    @staticmethod
    def current() -> "ContinuableStream | None":
        """Return the stream to which this task's generations belong."""
        return _current.get()

    def open(self, prompt: Any, params: Any) -> None:
        """Start recording delivered tokens for a new generation, if the generation can be continued."""
        self._generations += 1
        single = self._generations == 1
        self.delivered = DeliveredTokens() if single and _is_continuable(prompt, params) else None

    async def outputs(self, generated: AsyncGenerator[RequestOutput]) -> AsyncGenerator[RequestOutput]:
        """Yield the delivered tokens again, then `generated`, and record its tokens as delivered.

        A reader that asks for the next output has sent all events of the previous output.
        """
        try:
            if self._replaying:
                first = await anext(generated)  # vLLM calls `advance` before the first output
                for count, output in enumerate(self._replay):
                    output.num_cached_tokens = min(first.num_cached_tokens or 0, len(first.prompt_token_ids))
                    yield output
                    if count % _REPLAYED_PER_TURN == 0:
                        await asyncio.sleep(0)
                self._replaying = False
                if self._is_new(first):
                    yield first
                    self._record(first)
            async for output in generated:
                if self._is_new(output):
                    yield output
                    self._record(output)
        finally:
            self._replaying = False
            await generated.aclose()

    def _is_new(self, output: RequestOutput) -> bool:
        """Drop tokens that a sequence generated after its end. Returns whether `output` has other tokens."""
        if self._ended:
            output.outputs = [one for one in output.outputs if one.index not in self._ended]
        return bool(output.outputs)

    def _record(self, output: RequestOutput) -> None:
        if self.delivered is not None:
            for one in output.outputs:
                self.delivered.note(one.index, one.token_ids)

    def forward(self, output: RequestOutput) -> bool:
        """Send an output's events at once, past the waiting generators. Returns whether they were sent."""
        write_now = self._request.state.write_now
        if write_now is None or self.encode is None or self._continuation is not None or output.finished:
            return False
        # One of several sequences has failed. The generators distinguish client and server errors.
        if any(one.finish_reason == "error" for one in output.outputs):
            return False
        if not write_now(b""):
            return False
        write_now(self.encode(output))
        self._record(output)
        return True

    def advance(self, request: Any, state: Any, max_model_len: int) -> None:
        """Bring a sequence that vLLM has just registered to the end of its delivered tokens."""
        index = state.request_index
        delivered = self._before.get(index)
        if not self._replaying or self.delivered is None or delivered is None:
            return
        outputs = advance(state, request, delivered, 1 if self._one_by_one else len(delivered), max_model_len)
        self._replay += outputs
        if outputs[-1].outputs[0].finished():
            self._ended.add(index)

    async def new_frames(self, frames: AsyncIterator[str | bytes]) -> AsyncGenerator[bytes]:
        """Yield a handler's frames that were not delivered yet, with the `created` of the first engine.

        Raises:
            ApiError: 409, if the stream cannot be continued.
        """
        created = self._continuation.created if self._continuation is not None else 0
        try:
            async for frame in frames:
                if self.delivered is None:  # known once vLLM has started to generate
                    raise not_continuable()
                data = frame if isinstance(frame, bytes) else frame.encode()
                if self._replaying and not data.startswith(ERROR_FRAME):
                    continue
                yield _CREATED.sub(b'"created":%d' % created, data) if created else data
        finally:
            if hasattr(frames, "aclose"):
                await frames.aclose()


def continue_streams(engine: AsyncLLM) -> None:
    """Have `engine` record delivered tokens and continue other engines' streams, once per engine."""
    if "generate" in vars(engine):
        return
    processor = engine.output_processor
    max_model_len = engine.model_config.max_model_len

    def generate_part(generate: Method) -> Method:
        def wrapped(prompt: Any, params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[RequestOutput]:
            stream = ContinuableStream.current()
            if params.extra_args:
                params.extra_args.pop(DELIVERED, None)  # a client must not set this key
            generated: AsyncGenerator[RequestOutput] = generate(prompt, params, *args, **kwargs)
            if stream is not None:
                stream.open(prompt, params)
            return generated if stream is None or stream.delivered is None else stream.outputs(generated)

        return wrapped

    def add_and_advance(add: Method) -> Method:
        def wrapped(request: Any, *args: Any, **kwargs: Any) -> None:
            add(request, *args, **kwargs)
            stream = ContinuableStream.current()
            if stream is not None:
                state = processor.request_states[request.request_id]
                stream.advance(request, state, max_model_len)
                forward_at_once(state.queue, stream.forward)

        return wrapped

    wrap_generate(engine, generate_part)
    wrap_add_request(processor, add_and_advance)


def _is_continuable(prompt: Any, params: Any) -> bool:
    """Return whether the tokens generated so far are the whole state of a generation."""
    return (
        isinstance(prompt, dict)
        and prompt.get("type") == "token"
        and params.output_kind == RequestOutputKind.DELTA
        and all(getattr(params, name, None) is None for name in _NOT_CONTINUED)
    )
