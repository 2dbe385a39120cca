"""Statistics as vLLM's front end makes them: its own classes, fed what an engine core would send."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, FinishReason
from vllm.v1.metrics.stats import (
    IterationStats,
    LoRARequestStates,
    PrefillStats,
    RequestStateStats,
    SchedulerIterationDetails,
    SchedulerStats,
)


class StubCore:
    """Holds requests as vLLM's output processor does; `step` makes one step's statistics.

    Times are the core's: seconds on a clock of its own.
    """

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self._events: dict[str, list[EngineCoreEvent]] = {}

    def add(self, name: str, prompt: int = 10, queued: float = 0.0, arrived: float = 0.0) -> None:
        """A request arrives."""
        self.requests[name] = SimpleNamespace(
            prompt_len=prompt, is_prefilling=True, stats=RequestStateStats(arrival_time=arrived)
        )
        self._events[name] = [EngineCoreEvent.new_event(EngineCoreEventType.QUEUED, queued)]

    def schedule(self, name: str, at: float) -> None:
        """The core begins a request."""
        self._events[name].append(EngineCoreEvent.new_event(EngineCoreEventType.SCHEDULED, at))

    def step(
        self,
        at: float,
        *names: str,
        tokens: int = 1,
        finished: Sequence[str] = (),
        cached: int = 0,
        reason: FinishReason = FinishReason.STOP,
    ) -> IterationStats:
        """A step that ends at `at` with `tokens` tokens for each of `names`; `finished` end with it."""
        iteration = IterationStats()
        for name in names:
            state = self.requests[name]
            prefill = PrefillStats()
            prefill.set(state.prompt_len, cached, 0)
            output = EngineCoreOutput(
                name,
                list(range(tokens)),
                events=self._events.pop(name, None),
                prefill_stats=prefill if state.is_prefilling else None,
            )
            iteration.update_from_output(
                output, at, state.is_prefilling, state.stats, LoRARequestStates(), None
            )
            state.is_prefilling = False
            if name in finished:
                del self.requests[name]
                iteration.update_from_finished_request(reason, name, state.prompt_len, None, state.stats)
        return iteration


def scheduled(
    prefill: int = 0, batch: int = 0, elapsed_ms: float = 0.0, dummy: bool = False, **fields: Any
) -> SchedulerStats:
    """What the scheduler says of a step."""
    return SchedulerStats(
        iteration_details=SchedulerIterationDetails(
            iteration_index=0,
            num_ctx_requests=int(prefill > 0),
            num_ctx_tokens=prefill,
            num_generation_requests=batch,
            num_generation_tokens=batch,
            elapsed_ms=elapsed_ms,
            is_dummy=dummy,
        ),
        **fields,
    )
