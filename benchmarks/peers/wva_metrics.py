"""The metrics that llm-d's workload variant autoscaler goes by: peaks of the last minute, by replica."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from replay.sample import Sample

SCRAPE_S = 15.0
EVERY = 2
"""Scrapes between two decisions: its engine polls every 30 s."""
_PEAK_S = 60.0
_RATE_S = 300.0


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica's peaks."""

    kv_usage: float
    waiting: float


class Metrics:
    """Keeps what a Prometheus server would have of the fleet.

    Source: llm-d workload-variant-autoscaler, its Prometheus queries: `max_over_time(...[1m])` of KV cache
    usage and waiting requests, and 5-minute rates of prompt and generated tokens.
    """

    def __init__(self) -> None:
        self._scrapes: deque[tuple[float, dict[int, Replica]]] = deque()
        self._totals: deque[tuple[float, float, float, float]] = deque()

    def scrape(self, sample: Sample) -> None:
        """Take in one scrape."""
        replicas = sample.replicas.tolist() if sample.replicas.size else range(sample.ready)
        rows = zip(replicas, sample.kv_usage.tolist(), sample.waiting.tolist(), strict=True)
        self._scrapes.append((sample.at, {number: Replica(kv, waiting) for number, kv, waiting in rows}))
        while self._scrapes[0][0] <= sample.at - _PEAK_S:
            self._scrapes.popleft()
        self._totals.append(
            (sample.at, sample.finished, sample.finished_prompt_tokens, sample.finished_output_tokens)
        )
        while len(self._totals) > 2 and self._totals[1][0] <= sample.at - _RATE_S:
            self._totals.popleft()

    def replicas(self) -> list[Replica]:
        """The replicas of the last scrape with their peaks."""
        found = []
        for number in self._scrapes[-1][1]:
            seen = [scraped[number] for _, scraped in self._scrapes if number in scraped]
            found.append(Replica(max(r.kv_usage for r in seen), max(r.waiting for r in seen)))
        return found

    def lengths(self) -> tuple[float, float]:
        """Mean prompt and generated tokens of requests that ended in five minutes; 0 without any."""
        _, count, prompt, output = (a - b for a, b in zip(self._totals[-1], self._totals[0], strict=True))
        return (prompt / count, output / count) if count > 0 else (0.0, 0.0)
