"""What an engine replica reports to the autoscaling policy, collected step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from serve_app.engine.milestones import FirstToken, Milestones, Reached
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES
from serve_app.telemetry.engine_metrics import EngineGauges
from serve_app.telemetry.latency_window import LatencyWindow
from serve_app.wire.signals import EngineSignals

_WINDOW_S = 30.0
_NOTHING = Reached([], [])


@dataclass(slots=True)
class StepSums:
    """Sums over the engine steps since the last report."""

    steps: int = 0
    step_s: float = 0.0
    batch: int = 0
    """Sequences that decoded."""
    prefill_tokens: int = 0
    kv_tokens: float = 0.0

    def means(self) -> dict[str, float]:
        """Return the number of steps and the means over them, by the names of the signals."""
        steps = self.steps or 1
        return {
            "steps": self.steps,
            "step_s": self.step_s / steps,
            "step_batch": self.batch / steps,
            "step_prefill_tokens": self.prefill_tokens / steps,
            "step_kv_tokens": self.kv_tokens / steps,
        }


class EngineReport:
    """Totals since it was built, means since the last report, and percentiles of the last 30 s.

    Build it after the warm-up, whose requests are then not counted.

    Args:
        requests: vLLM's states of the requests it holds, by id; the very mapping it keeps.
        kv_cache_tokens: Tokens the whole KV cache holds.
        most_tokens_a_step: Tokens of one sequence in one step, more than one with speculative decoding.
        clock: Seconds that never go back.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        requests: Mapping[str, Any],
        kv_cache_tokens: int,
        most_tokens_a_step: int = 1,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._requests = requests
        self._kv_cache_tokens = kv_cache_tokens
        self._clock = clock
        self._wall = wall
        self._scheduler = SchedulerStats()
        self._last_step_at: float | None = None
        """When the last step's statistics came, if it left the engine with work to do."""
        self.steps_taken = 0
        """Since it was built."""
        self._steps = StepSums()
        self._milestones = Milestones(requests, most_tokens_a_step)
        self._queue_waits = LatencyWindow(_WINDOW_S)
        self._prefills = LatencyWindow(_WINDOW_S)
        self._inter_token = LatencyWindow(_WINDOW_S)
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._finished_requests = 0
        self._finished_prompt_tokens = 0
        self._finished_generation_tokens = 0
        self._preemptions = 0

    @classmethod
    def of(cls, engine: AsyncLLM) -> EngineReport:
        """The report of an engine that has started."""
        # Not blocks times block size: a hybrid model's sequence holds blocks of several kinds. A model
        # without a KV cache has no size.
        tokens: int = engine.vllm_config.cache_config.kv_cache_size_tokens or 0
        return cls(
            engine.output_processor.request_states, tokens, 1 + engine.vllm_config.num_speculative_tokens
        )

    def step(self, scheduler: SchedulerStats | None, iteration: IterationStats | None) -> Reached:
        """Add one engine step; return what requests reached with it.

        `iteration` is None if the step had no result for any request.
        """
        self.steps_taken += 1
        now = self._clock()
        reached = self._add_results(iteration, now) if iteration is not None else _NOTHING
        if scheduler is not None:
            self._scheduler = scheduler
            self._add_step(scheduler, iteration, reached.first_tokens, now)
            self._last_step_at = now if self._requests else None
        return reached

    @property
    def unfinished(self) -> int:
        """Sequences the engine has, waiting or running."""
        return len(self._requests)

    def gauges(self) -> EngineGauges:
        """Return the queue now, and the KV cache as of the last step.

        The queue is counted from the requests, not read from the last step: an idle engine takes no steps,
        and its last one still says that something ran.
        """
        states = list(self._requests.values())
        prefilling = [state for state in states if state.is_prefilling]
        decoding = [state for state in states if not state.is_prefilling]
        running = min(len(states), self._scheduler.num_running_reqs)
        # The core says how many run, not which: those that have a token, and then first come, first served.
        # Where priorities decide instead, an older request than this one may be waiting.
        begun = max(0, running - len(decoding))
        arrivals = sorted(state.stats.arrival_time for state in prefilling)
        return EngineGauges(
            running_requests=running,
            waiting_requests=len(states) - running,
            running_tokens=sum(
                (state.prompt_len or 0) + state.stats.num_generation_tokens for state in decoding
            ),
            waiting_tokens=sum(state.prompt_len or 0 for state in prefilling),
            oldest_waiting_s=max(0.0, self._wall() - arrivals[begun]) if begun < len(arrivals) else 0.0,
            kv_cache_usage_ratio=self._scheduler.kv_cache_usage if states else 0.0,
        )

    def take(self, ongoing_requests: int) -> EngineSignals:
        """Return a report, at most one a second, and begin new means.

        Args:
            ongoing_requests: Requests open on the data plane.
        """
        now = self._clock()
        steps, self._steps = self._steps, StepSums()
        values = {
            **asdict(self.gauges()),
            "ongoing_requests": ongoing_requests,
            "kv_cache_tokens": self._kv_cache_tokens,
            "prompt_tokens_total": self._prompt_tokens,
            "generation_tokens_total": self._generation_tokens,
            "finished_requests_total": self._finished_requests,
            "finished_prompt_tokens_total": self._finished_prompt_tokens,
            "finished_generation_tokens_total": self._finished_generation_tokens,
            "preemptions_total": self._preemptions,
            **steps.means(),
            "ttft_count": self._queue_waits.count(now),
            **_percentiles("ttft_queue", self._queue_waits, now, PERCENTILES),
            **_percentiles("ttft_prefill", self._prefills, now, PERCENTILES),
            "itl_count": self._inter_token.count(now),
            **_percentiles("itl", self._inter_token, now, ITL_PERCENTILES),
        }
        return EngineSignals(**{name: float(value) for name, value in values.items()})

    def _add_results(self, iteration: IterationStats, now: float) -> Reached:
        observe = self._inter_token.observe
        for seconds in iteration.inter_token_latencies_iter:
            observe(seconds, now)
        self._prompt_tokens += iteration.prompt_token_stats.computed
        self._generation_tokens += iteration.num_generation_tokens
        self._preemptions += iteration.num_preempted_reqs
        for request in iteration.finished_requests:
            self._finished_requests += 1
            self._finished_prompt_tokens += request.num_prompt_tokens
            self._finished_generation_tokens += request.num_generation_tokens
        reached = self._milestones.note(iteration)
        for first in reached.first_tokens:
            self._queue_waits.observe(first.queue_s, now)
            self._prefills.observe(first.prefill_s, now)
        return reached

    def _add_step(
        self,
        scheduler: SchedulerStats,
        iteration: IterationStats | None,
        first_tokens: Sequence[FirstToken],
        now: float,
    ) -> None:
        details = scheduler.iteration_details
        if details is None or details.is_dummy:
            return
        if iteration is None and not self._requests:
            # With asynchronous scheduling the core has begun one more step before it sees that the last
            # request has ended, and that step is for no request.
            return
        steps = self._steps
        steps.steps += 1
        steps.step_s += step_seconds(
            iteration.inter_token_latencies_iter if iteration is not None else (),
            now - self._last_step_at if self._last_step_at is not None else None,
            min((first.prefill_s for first in first_tokens), default=None),
            details.elapsed_ms,
        )
        steps.batch += details.num_generation_requests
        steps.prefill_tokens += details.num_ctx_tokens
        steps.kv_tokens += scheduler.kv_cache_usage * self._kv_cache_tokens


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


def _percentiles(
    name: str, window: LatencyWindow, now: float, percentiles: tuple[int, ...]
) -> dict[str, float]:
    return {f"{name}_p{q}_s": window.percentile(q, now) for q in percentiles}
