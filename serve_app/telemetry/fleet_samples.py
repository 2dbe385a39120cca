"""Samples of each model's load, latency and tokens, from the metrics of all replicas."""

import re
import time
from collections import ChainMap, Counter, defaultdict, deque
from collections.abc import Mapping
from typing import Any

# Without requests that waited for a start: their time to first token is that of the start.
_LINE = re.compile(
    r"^llm_(user_ttft_seconds_bucket|inter_token_seconds_bucket|(?:completion|prompt)_tokens_total"
    r"|prefix_cache_(?:hits|queries)_total|(?:running|waiting)_requests|(?:background_)?held_requests)"
    r"\{((?!.*cold=\"true\").*)\} (\S+)",
    re.MULTILINE,
)
_FAMILIES = tuple(
    f"llm_{name}_"
    for name in (
        "user_ttft", "inter_token", "completion", "prompt", "prefix_cache", "running", "waiting", "held",
        "background",
    )
)  # fmt: skip
"""The beginnings of the names of these families. A thousand replicas have 30 MB of others."""
_LABEL = re.compile(r'(model|lane|le)="([^"]*)"')
_WINDOW_S = 30.0
"""The time for which percentiles and the cached share count, as for the policy."""
_KEPT_S = 900.0
Series = dict[tuple[str, str], int]
"""Values by metric and labels."""
Totals = Counter[str]
"""Sums over replicas, by metric and lane or bucket. They are whole numbers."""


class FleetSamples:
    """The samples of the last 15 minutes, oldest first."""

    def __init__(self) -> None:
        self.kept: deque[dict[str, Any]] = deque()
        self.cost_s = 0.0
        """The CPU time of the last sample, in seconds."""
        self._read: deque[tuple[float, Series]] = deque()
        self._parts: dict[str, tuple[str, str]] = {}
        """The model and part of each series' labels in the last sample. The next has most of them."""

    def add(self, exposition: str, now: float, replicas: dict[str, dict[str, int]]) -> dict[str, Any]:
        """Keep and return the sample of an exposition read at `now` (Unix time, seconds).

        Args:
            exposition: All `llm_*` series, as Prometheus reads them.
            replicas: The counts of replicas by model, which become part of the sample.
        """
        begun = time.thread_time()
        first, *families = exposition.split("\n# HELP ")
        ours = "\n".join([first, *(family for family in families if family.startswith(_FAMILIES))])
        series = {(metric, labels): int(float(value)) for metric, labels, value in _LINE.findall(ours)}
        self._read.append((now, series))
        while self._read[0][0] < now - 2 * _WINDOW_S:
            self._read.popleft()
        self._parts = {labels: self._parts.get(labels) or _model_and_part(labels) for _, labels in series}
        before = [each for _, each in self._read][:-1] or [series]
        at_start = [each for at, each in self._read if at <= now - _WINDOW_S] or before[:1]
        # A node that misses one scrape keeps its last values, so that they do not count as growth. A series
        # that is new has grown from 0: vLLM's counters appear with their first event.
        sums, step, window = (
            _growth(series, ChainMap(*reversed(each)), self._parts) for each in ([], before, at_start)
        )
        last_s = now - self.kept[-1]["at"] if self.kept else 0.0
        models = {
            name: {
                **counts,
                **{key: value for key, value in sums[name].items() if "_requests" in key},
                **_figures(step[name], window[name], last_s),
            }
            for name, counts in replicas.items()
        }
        self.kept.append(sample := {"at": round(now, 1), "models": models})
        while self.kept[0]["at"] <= now - _KEPT_S:
            self.kept.popleft()
        self.cost_s = time.thread_time() - begun
        return sample


def _growth(
    series: Series, before: Mapping[tuple[str, str], int], parts: Mapping[str, tuple[str, str]]
) -> defaultdict[str, Totals]:
    """Return each model's growth since `before`, summed over replicas.

    `parts` has the model, and the bucket or lane, of labels.
    """
    grown = defaultdict[str, Totals](Totals)
    for (metric, labels), value in series.items():
        old = before.get((metric, labels), 0)
        model, part = parts[labels]
        # A replica that restarts counts from 0 again.
        grown[model][f"{metric} {part}".rstrip()] += value - old if value >= old else value
    return grown


def _model_and_part(text: str) -> tuple[str, str]:
    """Return a series' model, and its bucket or lane."""
    labels = dict(_LABEL.findall(text))
    return labels["model"], labels.get("le") or labels.get("lane", "")


def _figures(step: Totals, window: Totals, last_s: float) -> dict[str, float]:
    """Return tokens per second since the last sample, and latencies and cached share of the window."""
    found = {}
    for kind in ("completion", "prompt"):
        tokens = sum(count for name, count in step.items() if name.startswith(f"{kind}_tokens_total"))
        found[f"{kind}_tokens_per_second"] = tokens / last_s if last_s else 0.0
    if queries := window["prefix_cache_queries_total"]:
        found["cached_share"] = window["prefix_cache_hits_total"] / queries
    for kind, metric in (("ttft", "user_ttft_seconds_bucket "), ("itl", "inter_token_seconds_bucket ")):
        counts = {float(name[len(metric) :]): n for name, n in window.items() if name.startswith(metric)}
        if any(counts.values()):
            found |= {f"{kind}_p{q}_s": quantile(sorted(counts.items()), q / 100) for q in (50, 95)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """Return the value that `share` of the observations do not exceed, as Prometheus interpolates it.

    `buckets` are the upper bounds, ascending to infinity, and the number of observations up to each.
    """
    rank, below_s, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets[:-1]:
        if count >= rank:
            return below_s + (bound - below_s) * (rank - below) / (count - below or 1.0)
        below_s, below = bound, count
    return below_s
