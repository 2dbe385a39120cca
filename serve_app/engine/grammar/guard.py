"""Admit a structured output to the engine core only after it has compiled in the sandbox.

vLLM would parse grammars on the event loop: a regular expression for up to 5 s, other kinds without a bound.
This process does not parse an admitted grammar again.
"""

import asyncio
import hashlib
import logging
import signal
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.structured_output.utils import choice_as_grammar

from serve_app.engine.grammar.compiler import GrammarCompiler, Passed, Refused, Verdict
from serve_app.engine.grammar.sandbox import JobEnd, Sandbox, SandboxEndedError, Work
from serve_app.engine.grammar.size import check_size
from serve_app.patches.vllm import Method, mark_validated, skip_structured_output_checks, wrap_method
from serve_app.settings.tree import StructuredOutputSettings

logger = logging.getLogger("ray.serve")

_AT_ONCE = 4
"""Jobs that share the CPU. A short job among long jobs takes four times its own time."""
_WAITING = 64
_REMEMBERED = 1024
_SLOW_S = 0.1
"""A slower compile waits until the engine core has had time to compile the previous slow grammar. The core
compiles with half as many threads as the machine has CPUs, and its other threads stay free for fast
compiles."""
_SLOW_WAITING = 8
_DRAW_S = 1.0
"""CPU seconds for the rest of a job: the fork and the drawn tokens."""
_CRASHES = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
)
"""These signals end a compile that runs out of memory: C++ aborts, or uses an invalid address."""
_DEAD_END = "no text that matches this structured output begins as the text generated so far does"

_verdict = msgspec.msgpack.Decoder(Verdict)


@dataclass(slots=True)
class _Shared:
    """A running job, and the number of requests that wait for its verdict."""

    task: asyncio.Task[Verdict]
    waiting: int = 0


class GrammarGuard:
    """Compiles structured outputs in the sandbox, a few at once, and caches the verdicts.

    A job that was killed from outside has no verdict. The guard repeats it once, and then asks the client to
    try again.

    Args:
        prepare: Called in the sandbox; returns the function that runs jobs.
        draw_s: CPU seconds of a job in addition to the compile.
    """

    def __init__(
        self, prepare: Callable[[], Work], bounds: StructuredOutputSettings, draw_s: float = _DRAW_S
    ) -> None:
        self.sandbox = Sandbox(prepare, bounds.compile_s + draw_s, bounds.max_compile_bytes)
        self._bounds = bounds
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._under_way: dict[bytes, _Shared] = {}
        self._jobs = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0
        self._slow = asyncio.Lock()
        self._slow_waiting = 0

    def start(self) -> None:
        self.sandbox.start()

    def stop(self) -> None:
        """End the sandbox and every job in it."""
        self.sandbox.stop()
        for shared in self._under_way.values():
            shared.task.cancel()

    async def admit(self, params: StructuredOutputsParams) -> None:
        """Return once `params` has passed, and mark `params` with the backend that vLLM's check chose.

        Raises:
            VLLMValidationError: the structured output is too large, too slow or invalid.
            GracefulHTTPError: 429 if too many jobs wait, 503 if the job was killed twice from outside.
        """
        check_size(params, self._bounds)
        fields = {name: value for name, value in asdict(params).items() if not name.startswith("_")}
        payload = msgspec.msgpack.encode(fields)
        key = hashlib.sha256(payload).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._share(key, payload)
        else:
            self._verdicts.move_to_end(key)
        if isinstance(verdict, Refused):
            raise VLLMValidationError(verdict.message, parameter="structured_outputs")
        if params.choice is not None and verdict.backend == "xgrammar":  # as vLLM's check does
            params.grammar, params.choice = choice_as_grammar(params.choice), None
        mark_validated(params, verdict.backend, automatic=verdict.was_auto)

    async def _share(self, key: bytes, payload: bytes) -> Verdict:
        """Share one job among all waiting requests, such as prompts of one request."""
        shared = self._under_way.get(key)
        if shared is None:
            shared = self._under_way[key] = _Shared(asyncio.create_task(self._judge(key, payload)))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                shared.task.cancel()
                if self._under_way.get(key) is shared:
                    del self._under_way[key]

    async def _judge(self, key: bytes, payload: bytes) -> Verdict:
        if self._waiting >= _WAITING:
            raise _busy(self._waiting)
        self._waiting += 1
        try:
            async with self._jobs:
                verdict = self._verdict(await self._run(payload))
        except TimeoutError:  # wall-clock time: not cached, because a busy machine may be the reason
            return Refused(_too_slow(self._bounds.compile_s))
        finally:
            self._waiting -= 1
        if isinstance(verdict, Passed) and verdict.compile_s > _SLOW_S:
            await self._wait_for_slow_one(verdict.compile_s)
        # Cached only now: a request that leaves and returns must not overtake the previous slow compile.
        self._verdicts[key] = verdict
        if len(self._verdicts) > _REMEMBERED:
            self._verdicts.popitem(last=False)
        return verdict

    async def _run(self, payload: bytes) -> JobEnd:
        try:
            end = await self.sandbox.run(payload)
            if end.ended_by not in (0, signal.SIGPROF):
                # Another process or the kernel may have killed the job. A crash by the job itself recurs.
                end = await self.sandbox.run(payload)
            return end
        except SandboxEndedError:
            raise _unavailable("the process that compiles structured outputs ended; try again") from None

    async def _wait_for_slow_one(self, compile_s: float) -> None:
        """Wait until the engine core has had time to compile the previous slow grammar."""
        if self._slow_waiting >= _SLOW_WAITING:
            raise _busy(self._slow_waiting)
        self._slow_waiting += 1
        try:
            await self._slow.acquire()
        finally:
            self._slow_waiting -= 1
        asyncio.get_running_loop().call_later(compile_s, self._slow.release)

    def _verdict(self, end: JobEnd) -> Verdict:
        """Return the verdict of a job. Raises GracefulHTTPError if the job was killed before it had one."""
        bounds = self._bounds
        if end.ended_by == signal.SIGPROF:
            return Refused(_too_slow(bounds.compile_s))
        if end.ended_by in _CRASHES:
            return Refused(
                "this structured output could not be compiled within "
                f"{bounds.max_compile_bytes} bytes of memory (structured_output.max_compile_bytes)"
            )
        if end.ended_by:
            logger.warning("signal %d ended a process that compiled a structured output", end.ended_by)
            raise _unavailable(
                f"the process that compiled this structured output was killed by signal {end.ended_by}; "
                "try again"
            )
        verdict: Verdict = _verdict.decode(end.result)
        if isinstance(verdict, Passed) and verdict.compile_s > bounds.compile_s:
            return Refused(_too_slow(bounds.compile_s))
        return verdict


def guard_grammars(llm: AsyncLLM, bounds: StructuredOutputSettings) -> GrammarGuard:
    """Have `llm` admit structured outputs by compile jobs instead of vLLM's checks on the event loop."""

    def prepare() -> Work:
        config = llm.vllm_config
        compiler = GrammarCompiler(config, cached_tokenizer_from_config(model_config=config.model_config))
        compiler.warm()
        return compiler.run

    guard = GrammarGuard(prepare, bounds)
    freeze_gc_heap()  # a garbage collection writes to all objects, and would unshare 150 MiB
    guard.start()
    wrap_method(llm, "generate", lambda generate: _guard_generate(generate, guard))
    skip_structured_output_checks()
    return guard


def _guard_generate(generate: Method, guard: GrammarGuard) -> Method:
    async def guarded(
        prompt: Any, sampling_params: SamplingParams, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        assert sampling_params.structured_outputs is not None
        await guard.admit(sampling_params.structured_outputs)
        outputs = generate(prompt, sampling_params, *args, **kwargs)
        try:
            async for output in outputs:
                # The core ends a request with "error" if its grammar accepts no token. vLLM calls that a
                # server error, but the client's grammar has a dead end that the job did not meet.
                if any(completion.finish_reason == "error" for completion in output.outputs):
                    raise VLLMValidationError(_DEAD_END, parameter="structured_outputs")
                yield output
        finally:
            await outputs.aclose()

    def choose(prompt: Any, sampling_params: SamplingParams, *args: Any, **kwargs: Any) -> Any:
        # Other requests keep vLLM's generator, because another generator would cost time per token.
        start = generate if sampling_params.structured_outputs is None else guarded
        return start(prompt, sampling_params, *args, **kwargs)

    return choose


def _busy(waiting: int) -> GracefulHTTPError:
    return GracefulHTTPError(
        f"{waiting} structured outputs wait to be compiled; try again", HTTPStatus.TOO_MANY_REQUESTS
    )


def _unavailable(message: str) -> GracefulHTTPError:
    return GracefulHTTPError(message, HTTPStatus.SERVICE_UNAVAILABLE)


def _too_slow(bound: float) -> str:
    return (
        f"this structured output takes more than {bound} s of CPU time to compile "
        "(structured_output.max_compile_s); make it simpler or shorter"
    )
