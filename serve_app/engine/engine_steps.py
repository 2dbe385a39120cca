"""What the steps of an engine add up to."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from serve_app.engine.milestones import FirstToken, Milestones, Reached

_MOST_LATENCIES = 1 << 17
"""Bounds what waits for a report, of which there is one a second: some seconds of the fastest engine."""


@dataclass(slots=True)
class StepSums:
    """Sums over the engine steps since the last report, and the latencies in them."""

    steps: int = 0
    step_s: float = 0.0
    batch: int = 0
    """Sequences that decoded."""
    prefill_tokens: int = 0
    kv_cache_usage: float = 0.0
    inter_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_LATENCIES))
    first_tokens: deque[FirstToken] = field(default_factory=lambda: deque(maxlen=_MOST_LATENCIES))


class EngineSteps:
    """Adds up engine steps for an `EngineReport`, which takes `sums` once a second. The totals stay.

    Args:
        requests: vLLM's states of the requests it holds, by id; the very mapping it keeps.
        most_tokens_a_step: Tokens of one sequence in one step, more than one with speculative decoding.
        clock: Seconds that never go back.
    """

    def __init__(
        self, requests: Mapping[str, Any], most_tokens_a_step: int, clock: Callable[[], float]
    ) -> None:
        self.taken = 0
        self.sums = StepSums()
        self.prompt_tokens = self.finished_requests = 0
        self.finished_prompt_tokens = self.finished_generation_tokens = 0
        self.scheduler = SchedulerStats()
        """The scheduler's, of the last step."""
        self._requests = requests
        self._milestones = Milestones(requests, most_tokens_a_step)
        self._clock = clock
        self._last_step_at: float | None = None
        """When the last step's statistics came, if it left the engine with work to do."""

    def add(self, scheduler: SchedulerStats | None, iteration: IterationStats | None) -> Reached:
        """Add one engine step; return what requests reached with it.

        `iteration` is None if the step had no result for any request.
        """
        self.taken += 1
        reached = Reached([], []) if iteration is None else self._add_results(iteration)
        if scheduler is None:
            return reached
        self.scheduler = scheduler
        now = self._clock()
        since_last_s = None if self._last_step_at is None else now - self._last_step_at
        self._last_step_at = now if self._requests else None
        details = getattr(scheduler, "iteration_details", None)  # vLLM has them since 0.26
        # With asynchronous scheduling the core has begun one more step before it sees that the last request
        # has ended, and that step is for no request.
        if details is None or details.is_dummy or (iteration is None and not self._requests):
            return reached
        sums = self.sums
        sums.steps += 1
        sums.step_s += step_seconds(
            iteration.inter_token_latencies_iter if iteration is not None else (),
            since_last_s,
            min((first.prefill_s for first in reached.first_tokens), default=None),
            details.elapsed_ms,
        )
        sums.batch += details.num_generation_requests
        sums.prefill_tokens += details.num_ctx_tokens
        sums.kv_cache_usage += scheduler.kv_cache_usage
        return reached

    def _add_results(self, iteration: IterationStats) -> Reached:
        self.prompt_tokens += iteration.prompt_token_stats.computed
        for request in iteration.finished_requests:
            self.finished_requests += 1
            self.finished_prompt_tokens += request.num_prompt_tokens
            self.finished_generation_tokens += request.num_generation_tokens
        reached = self._milestones.note(iteration)
        self.sums.inter_token_s.extend(iteration.inter_token_latencies_iter)
        self.sums.first_tokens.extend(reached.first_tokens)
        return reached


def step_seconds(
    inter_token_s: Sequence[float], since_last_s: float | None, prefill_s: float | None, elapsed_ms: float
) -> float:
    """Return how long a step took.

    vLLM's own `elapsed_ms` is only the engine core's wait for the result. It is too short where steps
    overlap (asynchronous scheduling), and next to nothing where the model runs in the core's process. So
    it comes last.

    Args:
        inter_token_s: Inter-token latencies of the sequences that decoded, by the core's own clock: what
            the step added to each stream. The median, because one that was preempted has waited longer.
        since_last_s: Time since the result of the step before, if the engine had work all along.
        prefill_s: The shortest prefill that ended with this step. After a pause, that is the step.
        elapsed_ms: vLLM's figure, the only one there is for the first of several prefill steps after a pause.
    """
    if inter_token_s:
        return median(inter_token_s)
    if since_last_s is not None:
        return since_last_s
    return elapsed_ms / 1e3 if prefill_s is None else prefill_s
