"""vLLM's step statistics, for metrics and for the autoscaling policy's signals."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from serve_app.engine.sequence_lanes import SequenceLanes
from serve_app.ledger.meter import UsageMeter
from serve_app.settings.caller import LANES, Lane
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES
from serve_app.telemetry.latency_window import LatencyWindow
from serve_app.telemetry.replica_metrics import EngineGauges, EngineMetrics, LaneLoad
from serve_app.wire.signals import EngineSignals

logger = logging.getLogger("ray.serve")

_WINDOW_S = 30.0
_MOST_LATENCIES = 1 << 17
"""Bound on the latencies kept for the next report, which comes once a second."""


class FirstToken(NamedTuple):
    """The parts of one request's time to first token, in seconds."""

    queue_s: float
    """In the engine's queue."""
    prefill_s: float
    """From the first step with the prompt to the token."""


@dataclass(slots=True)
class _Sums:
    """Sums over the engine steps since the last report, and the latencies in them."""

    steps: int = 0
    step_s: float = 0.0
    batch: int = 0
    """Sequences that decoded."""
    prefill_tokens: int = 0
    kv_cache_usage: float = 0.0
    inter_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_LATENCIES))
    first_tokens: deque[FirstToken] = field(default_factory=lambda: deque(maxlen=_MOST_LATENCIES))


class EngineReport:
    """An engine replica's report to the autoscaling policy, once a second.

    A report has totals since the object was built, means since the last report, and percentiles of the last
    30 s. Build it after the warm-up, whose requests are then not counted. Totals and percentiles leave out
    the lane `background`.

    Args:
        requests: vLLM's states of its requests, by id; the very mapping that vLLM keeps.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        requests: Mapping[str, Any],
        kv_cache_tokens: int,
        lanes: SequenceLanes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps = 0
        """The number of calls of `add`."""
        self._requests = requests
        self._kv_cache_tokens = kv_cache_tokens
        self._lanes = lanes or SequenceLanes()
        self._clock = clock
        self._sums = _Sums()
        self._prompt_tokens = self._finished_requests = 0
        self._finished_prompt_tokens = self._finished_generation_tokens = 0
        self._scheduler = SchedulerStats()
        """The scheduler's statistics of the last step."""
        self._last_step_at: float | None = None
        """When the last step's statistics came, if the engine had work to do after it."""
        self._last_first_token_ts = 0.0
        """When the last step with a first token ended, by the engine core's clock."""
        self._queue_waits = LatencyWindow(_WINDOW_S)
        self._prefills = LatencyWindow(_WINDOW_S)
        self._inter_token = LatencyWindow(_WINDOW_S)

    @classmethod
    def of(cls, engine: AsyncLLM, lanes: SequenceLanes) -> EngineReport:
        # Not blocks times block size, because a hybrid model has blocks of several kinds. A model without a
        # KV cache has no size.
        tokens: int = engine.vllm_config.cache_config.kv_cache_size_tokens or 0
        return cls(engine.output_processor.request_states, tokens, lanes)

    @property
    def sequences(self) -> Collection[str]:
        """The ids of the front end's unfinished sequences, waiting or running."""
        return self._requests.keys()

    def add(self, scheduler: SchedulerStats | None, parts: Mapping[Lane, IterationStats]) -> list[FirstToken]:
        """Add one engine step and return its first tokens, without those of `background`.

        `parts` has the results by lane. It is empty if the step had no result for any request.
        """
        self.steps += 1
        others = [part for lane, part in parts.items() if lane != "background"]
        first_tokens = self._add_results(others) if others else []
        if scheduler is None:
            return first_tokens
        self._scheduler = scheduler
        now = self._clock()
        since_last_s = None if self._last_step_at is None else now - self._last_step_at
        self._last_step_at = now if self._requests else None
        details = scheduler.iteration_details
        # With asynchronous scheduling the core begins another step before it sees the end of the last
        # request. That step serves no request.
        if details is None or details.is_dummy or (not parts and not self._requests):
            return first_tokens
        sums = self._sums
        sums.steps += 1
        sums.step_s += step_seconds(
            # A sequence of `background` leaves out steps, so its latencies count only if there are no others.
            max((part.inter_token_latencies_iter for part in others or parts.values()), key=len, default=()),
            since_last_s,
            min((first.prefill_s for first in first_tokens), default=None),
            details.elapsed_ms,
        )
        sums.batch += details.num_generation_requests
        sums.prefill_tokens += details.num_ctx_tokens
        sums.kv_cache_usage += scheduler.kv_cache_usage
        return first_tokens

    def _add_results(self, parts: Sequence[IterationStats]) -> list[FirstToken]:
        for part in parts:
            self._prompt_tokens += part.prompt_token_stats.computed
            for request in part.finished_requests:
                self._finished_requests += 1
                self._finished_prompt_tokens += request.num_prompt_tokens
                self._finished_generation_tokens += request.num_generation_tokens
            self._sums.inter_token_s.extend(part.inter_token_latencies_iter)
        begun = any(part.time_to_first_tokens_iter for part in parts)
        first_tokens = self._first_tokens(parts) if begun else []
        self._sums.first_tokens.extend(first_tokens)
        return first_tokens

    def _first_tokens(self, parts: Sequence[IterationStats]) -> list[FirstToken]:
        """Return the first tokens of this step. vLLM itself reports them only when a request ends."""
        # Requests that ended with their first token have left `_requests`. Their decode time is exactly zero.
        firsts = [
            FirstToken(request.queued_time, request.prefill_time)
            for request in chain.from_iterable(part.finished_requests for part in parts)
            if request.decode_time == 0.0
        ]
        newest = self._last_first_token_ts
        for name, state in self._requests.items():
            stats = state.stats
            if stats.first_token_ts > self._last_first_token_ts and self._lanes.lane_of(name) != "background":
                newest = max(newest, stats.first_token_ts)
                begun = stats.scheduled_ts
                firsts.append(FirstToken(begun - stats.queued_ts, stats.first_token_ts - begun))
        self._last_first_token_ts = newest
        # A request that the core refused has a scheduling time of zero. One difference is then minus the
        # machine's uptime.
        return [first for first in firsts if first.queue_s >= 0.0 and first.prefill_s >= 0.0]

    def gauges(self) -> EngineGauges:
        """Return the queue now, and the KV cache as of the last step.

        The queue is counted from the requests. The scheduler's statistics are of the last step, so an idle
        engine would still report running requests. They do not have lanes. So the running requests are
        assigned in the order of the scheduler: other lanes before `background`, and of the other lanes those
        with a first token before those without.
        """
        loads = {lane: LaneLoad() for lane in LANES}
        begun = dict.fromkeys(LANES, 0)
        for name, state in self._requests.items():
            lane = self._lanes.lane_of(name)
            load = loads[lane]
            load.waiting_requests += 1
            if state.is_prefilling:
                load.waiting_tokens += state.prompt_len or 0
            else:
                begun[lane] += 1
                load.running_tokens += (state.prompt_len or 0) + state.stats.num_generation_tokens
        left = min(len(self._requests), self._scheduler.num_running_reqs)
        with_token = [(lane, begun[lane]) for lane in LANES if lane != "background"]
        for lane, most in [*with_token, *((lane, left) for lane in LANES)]:
            load = loads[lane]
            running = min(most, load.waiting_requests, left)
            load.running_requests += running
            load.waiting_requests -= running
            left -= running
        return EngineGauges(loads, self._scheduler.kv_cache_usage if self._requests else 0.0)

    def take(self, ongoing_requests: int) -> EngineSignals:
        """Return a report, at most one a second, and begin new means.

        Args:
            ongoing_requests: Requests open on the data plane.
        """
        now = self._clock()
        sums, self._sums = self._sums, _Sums()
        self._inter_token.observe(sums.inter_token_s, now)
        self._queue_waits.observe([first.queue_s for first in sums.first_tokens], now)
        self._prefills.observe([first.prefill_s for first in sums.first_tokens], now)
        steps = sums.steps or 1
        gauges = self.gauges()
        loads = [load for lane, load in gauges.lanes.items() if lane != "background"]
        background = gauges.lanes["background"]
        values = {
            "running_requests": sum(load.running_requests for load in loads),
            "waiting_requests": sum(load.waiting_requests for load in loads),
            "running_tokens": sum(load.running_tokens for load in loads),
            "waiting_tokens": sum(load.waiting_tokens for load in loads),
            "background_running_requests": background.running_requests,
            "background_waiting_requests": background.waiting_requests,
            "background_running_tokens": background.running_tokens,
            "background_waiting_tokens": background.waiting_tokens,
            "kv_cache_usage_ratio": gauges.kv_cache_usage_ratio,
            "ongoing_requests": ongoing_requests,
            "kv_cache_tokens": self._kv_cache_tokens,
            "prompt_tokens_total": self._prompt_tokens,
            "finished_requests_total": self._finished_requests,
            "finished_prompt_tokens_total": self._finished_prompt_tokens,
            "finished_generation_tokens_total": self._finished_generation_tokens,
            "steps": sums.steps,
            "step_s": sums.step_s / steps,
            "step_batch": sums.batch / steps,
            "step_prefill_tokens": sums.prefill_tokens / steps,
            "step_kv_tokens": sums.kv_cache_usage / steps * self._kv_cache_tokens,
            "ttft_count": self._queue_waits.count(now),
            **_percentiles("ttft_queue", self._queue_waits, now, PERCENTILES),
            **_percentiles("ttft_prefill", self._prefills, now, PERCENTILES),
            "itl_count": self._inter_token.count(now),
            **_percentiles("itl", self._inter_token, now, ITL_PERCENTILES),
        }
        return EngineSignals(**{name: float(value) for name, value in values.items()})


def step_seconds(
    inter_token_s: Sequence[float], since_last_s: float | None, prefill_s: float | None, elapsed_ms: float
) -> float:
    """Return the duration of a step.

    vLLM's `elapsed_ms` is the engine core's wait for the result. This wait is too short if steps overlap
    (asynchronous scheduling), and almost zero if the model runs in the core's process. So it is the last
    choice.

    Args:
        inter_token_s: Inter-token latencies of the sequences that decoded, by the core's clock. The median
            counts, because a preempted sequence waits longer.
        since_last_s: Seconds since the previous step's result; None if the engine was idle in between.
        prefill_s: The shortest prefill that ended with this step. After a pause it equals the step.
        elapsed_ms: vLLM's figure, the only one for the first of several prefill steps after a pause.
    """
    if inter_token_s:
        return median(inter_token_s)
    if since_last_s is not None:
        return since_last_s
    return elapsed_ms / 1e3 if prefill_s is None else prefill_s


def meter_step(meter: UsageMeter, scheduler: SchedulerStats | None, iteration: IterationStats | None) -> None:
    """Add an engine step to the usage, with the tokens that it computed."""
    details = getattr(scheduler, "iteration_details", None)
    if details is None or details.is_dummy:
        meter.step(0, 0, 0, iteration is not None)
        return
    meter.step(
        details.num_ctx_tokens,
        details.num_generation_requests,
        details.num_generation_tokens,
        iteration is not None,
    )


def _percentiles(
    name: str, window: LatencyWindow, now: float, percentiles: tuple[int, ...]
) -> dict[str, float]:
    return {f"{name}_p{q}_s": window.percentile(q, now) for q in percentiles}


class StepStats(StatLoggerBase):  # type: ignore[misc]
    """Adds each step to the metrics and the report. vLLM calls this logger after every engine step.

    `report` and `meter` are None until the warm-up is over. Without a ledger, `meter` stays None.

    Args:
        more_loggers: Whether loggers of vLLM's come after this one.
    """

    def __init__(
        self, metrics: EngineMetrics, lanes: SequenceLanes | None = None, *, more_loggers: bool = False
    ) -> None:
        self._metrics = metrics
        self._more_loggers = more_loggers
        self._lanes = lanes or SequenceLanes()
        self._failed = False
        self.report: EngineReport | None = None
        self.meter: UsageMeter | None = None

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        """Add one step's statistics. Never raises."""
        try:
            parts = self._lanes.take(iteration_stats)
            if self.report is not None:
                for queue_s, prefill_s in self.report.add(scheduler_stats, parts):
                    self._metrics.queue_wait.observe((queue_s,))
                    self._metrics.prefill.observe((prefill_s,))
            if self.meter is not None:
                meter_step(self.meter, scheduler_stats, iteration_stats)
            self._export(scheduler_stats)
            for lane, part in parts.items():
                self._export_lane(lane, part)
            if self._more_loggers:
                self._lanes.fill(iteration_stats, parts)
        except Exception:
            # An error raised here would end vLLM's output loop, and every stream of this replica with it.
            # Steps come every few milliseconds, so only the first failure is logged.
            if not self._failed:
                self._failed = True
                logger.exception("the statistics of an engine step were lost; metrics are incomplete")

    def _export(self, scheduler_stats: SchedulerStats | None) -> None:
        metrics = self._metrics
        if scheduler_stats is not None:
            prefix = scheduler_stats.prefix_cache_stats
            if prefix.queries:
                metrics.prefix_queries.inc(prefix.queries)
            if prefix.hits:
                metrics.prefix_hits.inc(prefix.hits)

    def _export_lane(self, lane: Lane, iteration_stats: IterationStats) -> None:
        metrics, of_lane = self._metrics, {"lane": lane}
        if iteration_stats.time_to_first_tokens_iter:
            metrics.ttft.observe(iteration_stats.time_to_first_tokens_iter, lane=lane)
        if iteration_stats.num_prompt_tokens:
            metrics.prompt_tokens.inc(iteration_stats.num_prompt_tokens, of_lane)
        if iteration_stats.num_generation_tokens:
            metrics.completion_tokens.inc(iteration_stats.num_generation_tokens, of_lane)
        if iteration_stats.num_preempted_reqs:
            metrics.preemptions.inc(iteration_stats.num_preempted_reqs, of_lane)
        for request in iteration_stats.finished_requests:
            metrics.requests.inc(1, {"finish_reason": str(request.finish_reason), "lane": lane})
        if lane == "background":
            return
        metrics.inter_token.observe(iteration_stats.inter_token_latencies_iter)
        metrics.e2e.observe(request.e2e_latency for request in iteration_stats.finished_requests)

    def log_engine_initialized(self) -> None:
        """Do nothing: the replica logs its own start-up line."""
