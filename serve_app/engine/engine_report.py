"""What an engine replica reports to the autoscaling policy, once a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.engine.engine_steps import EngineSteps, StepSums
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES
from serve_app.telemetry.engine_metrics import EngineGauges
from serve_app.telemetry.latency_window import LatencyWindow
from serve_app.wire.signals import EngineSignals

_WINDOW_S = 30.0


class EngineReport:
    """Totals since it was built, means since the last report, and percentiles of the last 30 s.

    Build it after the warm-up, whose requests are then not counted.

    Args:
        kv_cache_tokens: Tokens the whole KV cache holds. The others are those of `EngineSteps`.
    """

    def __init__(
        self,
        requests: Mapping[str, Any],
        kv_cache_tokens: int,
        most_tokens_a_step: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps = EngineSteps(requests, most_tokens_a_step, clock)
        """To be given every step."""
        self._requests = requests
        self._kv_cache_tokens = kv_cache_tokens
        self._clock = clock
        self._queue_waits = LatencyWindow(_WINDOW_S)
        self._prefills = LatencyWindow(_WINDOW_S)
        self._inter_token = LatencyWindow(_WINDOW_S)

    @classmethod
    def of(cls, engine: AsyncLLM) -> EngineReport:
        """The report of an engine that has started."""
        # Not blocks times block size: a hybrid model's sequence holds blocks of several kinds. A model
        # without a KV cache has no size.
        tokens: int = engine.vllm_config.cache_config.kv_cache_size_tokens or 0
        return cls(
            engine.output_processor.request_states, tokens, 1 + engine.vllm_config.num_speculative_tokens
        )

    @property
    def unfinished(self) -> int:
        """Sequences the engine has, waiting or running."""
        return len(self._requests)

    def gauges(self) -> EngineGauges:
        """Return the queue now, and the KV cache as of the last step.

        The queue is counted from the requests, not read from the last step: an idle engine takes no steps,
        and its last one still says that something ran.
        """
        states = self._requests.values()
        running = min(len(states), self.steps.scheduler.num_running_reqs)
        return EngineGauges(
            running_requests=running,
            waiting_requests=len(states) - running,
            running_tokens=sum(
                (state.prompt_len or 0) + state.stats.num_generation_tokens
                for state in states
                if not state.is_prefilling
            ),
            waiting_tokens=sum(state.prompt_len or 0 for state in states if state.is_prefilling),
            kv_cache_usage_ratio=self.steps.scheduler.kv_cache_usage if states else 0.0,
        )

    def take(self, ongoing_requests: int) -> EngineSignals:
        """Return a report, at most one a second, and begin new means.

        Args:
            ongoing_requests: Requests open on the data plane.
        """
        now = self._clock()
        sums, self.steps.sums = self.steps.sums, StepSums()
        self._inter_token.observe(sums.inter_token_s, now)
        self._queue_waits.observe([first.queue_s for first in sums.first_tokens], now)
        self._prefills.observe([first.prefill_s for first in sums.first_tokens], now)
        steps = sums.steps or 1
        values = {
            **asdict(self.gauges()),
            "ongoing_requests": ongoing_requests,
            "kv_cache_tokens": self._kv_cache_tokens,
            "prompt_tokens_total": self.steps.prompt_tokens,
            "finished_requests_total": self.steps.finished_requests,
            "finished_prompt_tokens_total": self.steps.finished_prompt_tokens,
            "finished_generation_tokens_total": self.steps.finished_generation_tokens,
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


def _percentiles(
    name: str, window: LatencyWindow, now: float, percentiles: tuple[int, ...]
) -> dict[str, float]:
    return {f"{name}_p{q}_s": window.percentile(q, now) for q in percentiles}
