"""The engine's queue and cache at one moment, as its front end knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.v1.metrics.stats import SchedulerStats

from serve_app.telemetry.engine_metrics import EngineGauges


@dataclass(frozen=True, slots=True)
class QueueReading:
    """One reading."""

    gauges: EngineGauges
    oldest_waiting_s: float
    """Age of the oldest request that the engine has not begun; 0 if none waits."""


def read_queue(requests: Mapping[str, Any], scheduler: SchedulerStats, wall_now: float) -> QueueReading:
    """Read the queue from the requests held, and the cache as of the last step.

    Counted from the requests rather than from the last step: an idle engine takes no steps, and its last
    one still says that something ran.

    Args:
        requests: vLLM's states of the requests it holds, by id.
        scheduler: What the scheduler said of the last step.
        wall_now: Unix time in seconds, which is how vLLM notes arrivals.
    """
    states = list(requests.values())
    prefilling = [state for state in states if state.is_prefilling]
    decoding = [state for state in states if not state.is_prefilling]
    running = min(len(states), scheduler.num_running_reqs)
    # The core says how many run, not which: those that have a token, and then first come, first served.
    # Where priorities decide instead, an older request than this one may be waiting.
    begun = max(0, running - len(decoding))
    arrivals = sorted(state.stats.arrival_time for state in prefilling)
    return QueueReading(
        EngineGauges(
            running_requests=running,
            waiting_requests=len(states) - running,
            running_tokens=sum(
                (state.prompt_len or 0) + state.stats.num_generation_tokens for state in decoding
            ),
            waiting_tokens=sum(state.prompt_len or 0 for state in prefilling),
            kv_cache_usage_ratio=scheduler.kv_cache_usage if states else 0.0,
        ),
        max(0.0, wall_now - arrivals[begun]) if begun < len(arrivals) else 0.0,
    )
