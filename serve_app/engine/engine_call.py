"""One call on an engine replica: its message, its sequences, and the two paths of a token.

On the fast path (`forward`), the events of an output are written within the call that brings the output. On
the other path (`outputs`), the output wakes a task and passes the generators of vLLM's handler and of ours:
at 256 streams, a third of the front end's time per token. An output takes the fast path if its events depend
on nothing else, and if the reader has taken all earlier outputs and has room.

On both paths an output's tokens count as delivered once all of its events have been sent. Another engine can
continue the stream from the delivered tokens (`continued_call`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextvars import ContextVar
from secrets import token_hex
from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from serve_app.api.engine_client import SPEECH_OPERATIONS, DeliveredTokens
from serve_app.api.trace import TraceContext
from serve_app.engine.continuing_core import DELIVERED, core_continues
from serve_app.engine.sequence_lanes import Charge, SequenceLanes
from serve_app.patches.vllm import Method, forward_at_once, wrap_method
from serve_app.settings.caller import LANES, Caller, Lane
from serve_app.wire.data_plane import Call, TokenCounts
from serve_app.wire.request_line import ABANDONED, COMPLETED, FAILED

_NOT_CONTINUED = (
    # Fields of vLLM's sampling parameters.
    "trace_decode_token_ids",
    "prompt_logprobs",
    "prompt_logprob_token_ids",
    "extra_args",  # for samplers outside vLLM
)

_current: ContextVar[EngineCall | None] = ContextVar("engine_call", default=None)


class EngineCall:
    """A call from its message to its end. `ContinuedCall` is one that another engine began."""

    def __init__(self, message: Call) -> None:
        self.message = message
        self.arrived = time.perf_counter() - message.waited_s
        """When the request arrived at the ingress, by this process's `time.perf_counter`."""
        self.arrived_at = time.time() - message.waited_s
        """The same moment in Unix time."""
        self.model = ""
        """The name of the model that answers, without alias or adapter."""
        lane: Lane = next((each for each in LANES if each == message.lane), "standard")
        self.caller = Caller(message.key, lane, message.weight, message.budgets)
        self.trace = TraceContext(message.traceparent, message.tracestate) if message.traceparent else None
        self.counts = TokenCounts()
        """The tokens of the answer, unknown until the first event or the end."""
        self.lost = ""
        """Which of the data plane's `LOSSES` ended the answer; "" for none."""
        self.write_now: Callable[[bytes], bool] | None = None
        """Sends the next bytes of a stream at once, and returns whether it did. If not, the reply's `stream`
        must yield them. With empty bytes it sends nothing, and returns whether there is room. Call it only
        while the reader waits for `stream`. None until the first chunk has been sent."""
        self.first_token = 0.0
        """When the first token came, by `time.perf_counter`; 0 until then. For a stream that another engine
        began, the time of that engine's first token."""
        self.status: int | None = None
        """The HTTP status, once the answer has begun."""
        self.outcome = ABANDONED
        """`ABANDONED` until another is recorded."""
        self.sequences: list[Any] = []
        """vLLM's states of the call's sequences, which stay valid after the sequences' removal. vLLM itself
        reports tokens only for requests that finish by themselves, under an id that clients choose."""
        self.delivered: DeliveredTokens | None = None
        """The tokens generated here. None if no other engine can continue the stream."""
        self.encode: Callable[[RequestOutput], bytes] | None = None
        """Encodes an output as events. None if the events depend on more than the output."""
        self._charges: list[tuple[SequenceLanes, Any, Charge]] = []
        self._suffix = f"-{token_hex(8)}"
        self._generations = 0
        self._seed = xxh3_64_intdigest(message.body, xxh3_64_intdigest(message.request_id.encode()))
        self._ids = 0

    @property
    def request_id(self) -> str:
        """The id that the client chose, or the ingress."""
        return self.message.request_id

    @property
    def asked_model(self) -> str:
        """The name by which the client asked for the model."""
        return self.message.alias or self.model

    @property
    def adapter_name(self) -> str:
        """The name of the adapter; "" for the model itself."""
        return "" if self.message.adapter is None else self.message.adapter.name

    @property
    def waited_s(self) -> float:
        """Seconds since the arrival at the ingress."""
        return time.perf_counter() - self.arrived

    def release_body(self) -> None:
        """Free the body once an answer has begun: it may have megabytes, and the answer may take minutes."""
        self.message.body = b""

    def note_first_event(self) -> None:
        """Record the time of a stream's first event, and the tokens of its prompts."""
        self._note_counts(self.prompt_tokens())
        begun = self.message.continuation
        self.first_token = time.perf_counter() if begun is None else self.arrived + begun.ttft_s

    def complete(self) -> None:
        """Record that the answer is complete, unless the call has failed already."""
        if self.outcome != FAILED:
            self.outcome = COMPLETED
        self._note_counts(self.prompt_tokens())

    def fail(self, status: int) -> None:
        """Record that an error ended the call. `status` counts if the client has not got a status yet.

        Prompts that the engine has computed count, for example if vLLM refuses its own answer.
        """
        self.outcome = FAILED
        self._note_counts(sum(one.prompt_len for one in self.sequences if one.stats.first_token_ts > 0.0))
        if self.status is None:
            self.status = status

    def _note_counts(self, prompt: int) -> None:
        """Record the tokens so far, with `prompt` tokens of prompts."""
        if self.sequences:
            alone = prompt if len(self.sequences) == 1 else None
            self.counts = TokenCounts(self.cached_tokens(), alone, prompt, self.output_tokens())

    def cached_tokens(self) -> int:
        """Return the prompt tokens found in the prefix cache, over all sequences."""
        return sum(sequence.num_cached_tokens for sequence in self.sequences)

    def prompt_tokens(self) -> int:
        return sum(sequence.prompt_len for sequence in self.sequences)

    def output_tokens(self) -> int:
        """Return the generated tokens of all sequences."""
        return sum(sequence.stats.num_generation_tokens for sequence in self.sequences)

    def latency(self, first: float, tokens: int, now: float) -> dict[str, float | int]:
        """Return the latency figures of an answer that ends `now`, measured from the arrival at the ingress.

        `first` is the time of the first token; 0 without a token. Both are by `time.perf_counter`.
        """
        total, first = now - self.arrived, first or now
        between = (now - first) / (tokens - 1) if tokens > 1 else 0.0
        lost_ms = round(self.message.lost_s * 1e3, 3)
        return {
            "cold_wait_ms": round(self.message.queued_s * 1e3, 3),
            **({"lost_ms": lost_ms} if lost_ms else {}),
            "ttft_ms": round((first - self.arrived) * 1e3, 3),
            "inter_token_ms": round(between * 1e3, 3),
            "total_time_ms": round(total * 1e3, 3),
            "tokens_generated": tokens,
            "tokens_per_second": round(tokens / total, 3) if total > 0 else 0.0,
        }

    def engine_times(self) -> dict[str, float]:
        """Return the milliseconds in the engine's queue, of prefill and of decode, over all sequences.

        Without engine times of any sequence, it is empty.
        """
        kept = [sequence.stats for sequence in self.sequences if sequence.stats is not None]
        known = [stats for stats in kept if stats.queued_ts > 0.0]
        if not known:
            return {}
        queued, scheduled = min(one.queued_ts for one in known), min(one.scheduled_ts for one in known)
        first, last = min(one.first_token_ts for one in known), max(one.last_token_ts for one in known)
        times = {"queue_ms": scheduled - queued, "prefill_ms": first - scheduled, "decode_ms": last - first}
        return {name: round(max(0.0, spent) * 1e3, 3) for name, spent in times.items()}

    def begin(self) -> None:
        """Take all generations that this task and its child tasks start."""
        _current.set(self)

    def take_sequence(self, request: Any, state: Any, lanes: SequenceLanes) -> None:
        """Add a sequence that vLLM has just registered, in the lane of the call."""
        if self.message.operation in SPEECH_OPERATIONS:  # whose bodies have no field for the salt
            request.cache_salt = self.message.cache_salt or None
        self.sequences.append(state)
        charge = lanes.begin(self.caller, request, state, self.message.lane_knob)
        self._charges.append((lanes, state, charge))

    def end(self) -> None:
        """Note that all sequences have ended. Call it once."""
        for lanes, state, charge in self._charges:
            lanes.end(state, charge)

    @staticmethod
    def current() -> EngineCall | None:
        """Return the call to which this task's generations belong."""
        return _current.get()

    def open(self, prompt: Any, params: Any) -> None:
        """Start recording delivered tokens for a new generation, if the generation can be continued."""
        self._generations += 1
        single = self._generations == 1
        self.delivered = DeliveredTokens() if single and _is_continuable(prompt, params) else None

    def own_id(self, given: str) -> str:
        """Return the name of a sequence in vLLM's engine, from the name that a handler `given` it.

        Handlers use the request's id, which clients choose, and two clients may choose the same. vLLM aborts
        by these names.
        """
        return given + self._suffix

    def new_id(self) -> str:
        """Return the next id of 16 hexadecimal digits; "" before the generation.

        Each engine that runs or continues the stream gives the same ids. Before the generation vLLM draws
        ids for other uses, which must be random.
        """
        if not self._generations:
            return ""
        self._ids += 1
        return xxh3_64_hexdigest(b"%d" % self._ids, self._seed)

    async def outputs(self, generated: AsyncGenerator[RequestOutput]) -> AsyncGenerator[RequestOutput]:
        """Yield `generated`, and record its tokens as delivered.

        A reader that asks for the next output has sent all events of the previous output.
        """
        try:
            async for output in generated:
                yield output
                self.record(output)
        finally:
            await generated.aclose()

    def forward(self, output: RequestOutput) -> bool:
        """Send an output's events at once, past the waiting generators. Returns whether they were sent."""
        write_now = self.write_now
        if write_now is None or self.encode is None or output.finished:
            return False
        # One of several sequences has failed. The generators distinguish client and server errors.
        if any(one.finish_reason == "error" for one in output.outputs):
            return False
        if not write_now(b""):
            return False
        write_now(self.encode(output))
        self.record(output)
        return True

    def record(self, output: RequestOutput) -> None:
        """Record the tokens of an output as delivered: all of its events have been sent."""
        if self.delivered is not None:
            for one in output.outputs:
                self.delivered.note(one.index, one.token_ids)

    def advance(self, request: Any, state: Any, max_model_len: int) -> None:
        """Do nothing with a sequence that vLLM has just registered, because a new answer has no delivered
        tokens."""

    def new_frames(self, frames: AsyncIterator[str | bytes]) -> AsyncIterator[str | bytes]:
        """Return the frames of vLLM's handler that were not delivered before: all of them."""
        return frames


def follow_calls(engine: AsyncLLM, lanes: SequenceLanes) -> None:
    """Have `engine` tell each `EngineCall` of its sequences and outputs, once per engine."""
    processor: OutputProcessor = engine.output_processor
    if "add_request" in vars(processor):
        return
    continues = core_continues(engine.vllm_config)
    max_model_len = engine.model_config.max_model_len

    def generate_part(generate: Method) -> Method:
        def wrapped(prompt: Any, params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[RequestOutput]:
            call = EngineCall.current()
            if params.extra_args:
                params.extra_args.pop(DELIVERED, None)  # a client must not set this key
            generated: AsyncGenerator[RequestOutput] = generate(prompt, params, *args, **kwargs)
            if call is not None:
                call.open(prompt, params)
            return generated if call is None or call.delivered is None else call.outputs(generated)

        return wrapped

    def add_to_stream(add: Method) -> Method:
        def wrapped(request: Any, *args: Any, **kwargs: Any) -> None:
            add(request, *args, **kwargs)
            call = EngineCall.current()
            if call is None:
                return
            state = processor.request_states[request.request_id]
            call.take_sequence(request, state, lanes)
            if continues:
                call.advance(request, state, max_model_len)
                forward_at_once(state.queue, call.forward)

        return wrapped

    def add_by_own_id(add: Method) -> Method:
        def wrapped(request_id: str, *args: Any, **kwargs: Any) -> Awaitable[Any]:
            call = EngineCall.current()
            added: Awaitable[Any] = add(call.own_id(request_id) if call else request_id, *args, **kwargs)
            return added

        return wrapped

    def abort_by_own_id(abort: Method) -> Method:
        async def wrapped(request_id: str | Iterable[str], internal: bool = False) -> None:
            if not internal and (call := EngineCall.current()):
                given = [request_id] if isinstance(request_id, str) else request_id
                request_id = [call.own_id(each) for each in given]
            await abort(request_id, internal)

        return wrapped

    if continues:
        wrap_method(engine, "generate", generate_part)
    wrap_method(engine, "add_request", add_by_own_id)
    wrap_method(engine, "abort", abort_by_own_id)
    wrap_method(processor, "add_request", add_to_stream)
    lanes.divide_statistics(engine)


def _is_continuable(prompt: Any, params: Any) -> bool:
    """Return whether the tokens generated so far are the whole state of a generation."""
    return (
        isinstance(prompt, dict)
        and prompt.get("type") == "token"
        and params.output_kind == RequestOutputKind.DELTA
        and all(getattr(params, name, None) in (None, {}) for name in _NOT_CONTINUED)
    )
