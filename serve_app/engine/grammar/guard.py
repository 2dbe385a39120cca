"""Let a structured output into the engine core only after it has passed a trial."""

import asyncio
import hashlib
import logging
import re
import signal
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus

import msgspec
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.utils import choice_as_grammar

from serve_app.engine.grammar.nursery import Answer, Work
from serve_app.engine.grammar.nursery_client import NurseryClient, NurseryEndedError
from serve_app.engine.grammar.size import check_size
from serve_app.engine.grammar.trial import Passed, Trial
from serve_app.patches.vllm import mark_validated
from serve_app.patches.vllm_compat import GracefulHTTPError
from serve_app.settings.tree import StructuredOutputSettings

logger = logging.getLogger("ray.serve")

_AT_ONCE = 4
"""Trials that share the CPU: a short one among long ones ends after four times its own time."""
_WAITING = 64
_REMEMBERED = 1024
_SLOW_S = 0.1
"""A compile that takes longer waits until the slow one before it has had its time in the engine core, which
has half as many threads as the machine has CPUs: the other threads stay free for quick ones."""
_SLOW_WAITING = 8
_WALK_S = 1.0
"""CPU seconds for the rest of a trial: the fork, and the tokens drawn."""

_CRASHES = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
)
"""How a compile ends that gets no memory: C++ aborts, or uses what it did not get."""

_WHERE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: | \(parameter=\w+\)")
"""xgrammar's line of its own source, and what vLLM appends to messages."""
_UNSUPPORTED = "features not supported by"


class Refused(msgspec.Struct):
    """Why a structured output did not pass."""

    message: str


@dataclass(slots=True)
class _Shared:
    """A trial under way, and the number of requests that wait for its verdict."""

    task: asyncio.Task[Passed | Refused]
    waiting: int = 0


def trial_work(make: Callable[[], Trial]) -> Callable[[], Work]:
    """Return what a nursery prepares: `Trial.run`, from bytes to bytes."""

    def prepare() -> Work:
        trial = make()
        trial.warm()

        def work(payload: bytes) -> bytes:
            try:
                passed = trial.run(StructuredOutputsParams(**msgspec.msgpack.decode(payload)))
            except Exception as error:  # any that a backend raises: the grammar is the client's
                message = _WHERE.sub("", str(error)).strip() or type(error).__name__
                if _UNSUPPORTED in message:
                    message += " Another backend may support them (structured_output.backend)."
                return msgspec.msgpack.encode(Refused(message[:1000]))
            return msgspec.msgpack.encode(passed)

        return work

    return prepare


class GrammarGuard:
    """Tries structured outputs in processes of their own, a few at once, and remembers the verdicts.

    A trial that was killed from outside has no verdict: it is tried once more, and then the client is told to
    try again.

    Args:
        prepare: What the nursery runs trials with.
        bounds: The model's settings.
    """

    def __init__(self, prepare: Callable[[], Work], bounds: StructuredOutputSettings) -> None:
        self._bounds = bounds
        self._nursery = NurseryClient(prepare, bounds.compile_s + _WALK_S, bounds.max_compile_bytes)
        self._verdicts: OrderedDict[bytes, Passed | Refused] = OrderedDict()
        self._under_way: dict[bytes, _Shared] = {}
        self._trials = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0
        self._slow = asyncio.Lock()
        self._slow_waiting = 0

    def start(self) -> None:
        """Start the nursery."""
        self._nursery.start()

    def stop(self) -> None:
        """End the nursery and every trial in it."""
        self._nursery.stop()

    async def admit(self, params: StructuredOutputsParams) -> None:
        """Return once `params` has passed, marked with the backend that vLLM's own check chose.

        Raises:
            VLLMValidationError: the structured output is too large, too slow, or not valid.
            GracefulHTTPError: 429, too many trials wait; 503, its trial was killed twice from outside.
        """
        check_size(params, self._bounds)
        payload = msgspec.msgpack.encode(_fields(params))
        key = hashlib.sha256(payload).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._together(key, payload)
        else:
            self._verdicts.move_to_end(key)
        if isinstance(verdict, Refused):
            raise _invalid(verdict.message)
        if params.choice is not None and verdict.backend == "xgrammar":  # as vLLM's check of it does
            params.grammar, params.choice = choice_as_grammar(params.choice), None
        mark_validated(params, verdict.backend, automatic=verdict.was_auto)

    async def _together(self, key: bytes, payload: bytes) -> Passed | Refused:
        """Share one trial between all that wait for it, such as prompts of one request; the last ends it."""
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

    async def _judge(self, key: bytes, payload: bytes) -> Passed | Refused:
        try:
            verdict = await self._try(payload)
        except TimeoutError:  # by the clock, not the CPU: not remembered, as the machine may be at fault
            return Refused(_too_slow(self._bounds.compile_s))
        if isinstance(verdict, Passed) and verdict.compile_s > _SLOW_S:
            await self._wait_for_slow_one(verdict.compile_s)
        # Not before: a request that leaves while it waits and comes again would overtake the slow one here.
        self._verdicts[key] = verdict
        if len(self._verdicts) > _REMEMBERED:
            self._verdicts.popitem(last=False)
        return verdict

    async def _try(self, payload: bytes) -> Passed | Refused:
        if self._waiting >= _WAITING:
            raise _busy(self._waiting)
        self._waiting += 1
        try:
            async with self._trials:
                answer = await self._nursery.run(payload)
                if answer.ended_by not in (0, signal.SIGPROF):
                    # Anybody may have killed it, even the kernel for want of memory. Its own crash recurs.
                    answer = await self._nursery.run(payload)
                return self._verdict(answer)
        except NurseryEndedError:
            raise GracefulHTTPError(
                "the process that compiles structured outputs ended; try again",
                HTTPStatus.SERVICE_UNAVAILABLE,
            ) from None
        finally:
            self._waiting -= 1

    async def _wait_for_slow_one(self, compile_s: float) -> None:
        """Wait until the engine core has had time to compile the slow one before."""
        if self._slow_waiting >= _SLOW_WAITING:
            raise _busy(self._slow_waiting)
        self._slow_waiting += 1
        try:
            await self._slow.acquire()
        finally:
            self._slow_waiting -= 1
        asyncio.get_running_loop().call_later(compile_s, self._slow.release)

    def _verdict(self, answer: Answer) -> Passed | Refused:
        """Return what the trial found. Raises GracefulHTTPError if it was killed before it found anything."""
        bounds = self._bounds
        if answer.ended_by == signal.SIGPROF:
            return Refused(_too_slow(bounds.compile_s))
        if answer.ended_by and answer.ended_by not in _CRASHES:
            logger.warning("a process that compiled a structured output got signal %d", answer.ended_by)
            raise GracefulHTTPError(
                f"the process that compiled this structured output was killed by signal {answer.ended_by}; "
                "try again",
                HTTPStatus.SERVICE_UNAVAILABLE,
            )
        if answer.ended_by:
            return Refused(
                "this structured output could not be compiled within "
                f"{bounds.max_compile_bytes} bytes of memory (structured_output.max_compile_bytes)"
            )
        verdict = msgspec.msgpack.decode(answer.result)
        if "message" in verdict:
            return Refused(**verdict)
        passed = Passed(**verdict)
        return passed if passed.compile_s <= bounds.compile_s else Refused(_too_slow(bounds.compile_s))


def _fields(params: StructuredOutputsParams) -> dict[str, object]:
    return {name: value for name, value in asdict(params).items() if not name.startswith("_")}


def _invalid(message: str) -> VLLMValidationError:
    return VLLMValidationError(message, parameter="structured_outputs")


def _busy(waiting: int) -> GracefulHTTPError:
    return GracefulHTTPError(
        f"{waiting} structured outputs wait to be compiled; try again", HTTPStatus.TOO_MANY_REQUESTS
    )


def _too_slow(bound: float) -> str:
    return (
        f"this structured output takes more than {bound} s of CPU time to compile "
        "(structured_output.max_compile_s); make it simpler or shorter"
    )
