"""Samples of each model's load, latency and tokens, from the metrics of all replicas."""

import re
from collections import Counter, defaultdict, deque
from typing import Any

_LINE = re.compile(
    r"^(llm_(?:user_ttft_seconds_bucket|inter_token_seconds_bucket|(?:completion|prompt)_tokens_total"
    r"|prefix_cache_(?:hits|queries)_total|(?:running|waiting)_requests|(?:background_)?held_requests)"
    r"\{.*\}) (\S+)",
    re.MULTILINE,
)
_LABEL = re.compile(r'(model|lane|le|cold)="([^"]*)"')
Counts = Counter[str]
_WINDOW_S = 30.0
"""The time for which percentiles and the cached share count, as for the policy."""
_KEPT_S = 900.0


class FleetSamples:
    """The samples of the last 15 minutes, oldest first."""

    def __init__(self) -> None:
        self.kept: deque[dict[str, Any]] = deque()
        self._before: dict[str, float] = {}
        self._steps: deque[tuple[float, dict[str, Counts]]] = deque()
        """How much each counter of a model has grown between two samples, with the time of the later one."""

    def add(self, exposition: str, now: float, replicas: dict[str, dict[str, int]]) -> dict[str, Any]:
        """Keep and return the sample of an exposition read at `now` (Unix time, seconds).

        Args:
            exposition: All `llm_*` series, as Prometheus reads them.
            now: Unix time in seconds.
            replicas: The counts of replicas by model, which become part of the sample.
        """
        values, grown, gauges = (
            {},
            defaultdict[str, Counts](Counter),
            defaultdict[str, Counts](Counter),
        )
        for head, text in _LINE.findall(exposition):
            value = values[head] = float(text)
            name, labels = head.partition("{")[0], dict(_LABEL.findall(head))
            key = f"{name.removeprefix('llm_')} {labels.get('le') or labels.get('lane', '')}".rstrip()
            if name.endswith("_requests"):
                gauges[labels["model"]][key] += int(value)
            elif self._before and labels.get("cold") != "true":
                # A replica that restarts counts from 0 again.
                before = self._before.get(head, 0.0)
                grown[labels["model"]][key] += int(value - before if value >= before else value)
        self._before = values
        last_s = now - self.kept[-1]["at"] if self.kept else 0.0
        self._steps.append((now, grown))
        while self._steps[0][0] <= now - _WINDOW_S:
            self._steps.popleft()
        models = {
            name: {**counts, **gauges[name], **_rates(name, last_s, grown, [step for _, step in self._steps])}
            for name, counts in replicas.items()
        }
        sample = {"at": round(now, 1), "models": models}
        self.kept.append(sample)
        while self.kept[0]["at"] <= now - _KEPT_S:
            self.kept.popleft()
        return sample


def _rates(
    model: str, last_s: float, grown: dict[str, Counts], steps: list[dict[str, Counts]]
) -> dict[str, float]:
    """Return tokens per second since the last sample, and latencies and cached share of the window."""
    window = Counts()
    for step in steps:
        window.update(step.get(model, {}))  # a sum of counters would lose empty buckets
    found = {}
    for kind in ("completion", "prompt"):
        tokens = sum(count for key, count in grown[model].items() if key.startswith(f"{kind}_tokens_total"))
        found[f"{kind}_tokens_per_second"] = tokens / last_s if last_s else 0.0
    if queries := window["prefix_cache_queries_total"]:
        found["cached_share"] = window["prefix_cache_hits_total"] / queries
    for kind, name in (("ttft", "user_ttft_seconds_bucket "), ("itl", "inter_token_seconds_bucket ")):
        buckets = [(float(key.removeprefix(name)), n) for key, n in window.items() if key.startswith(name)]
        if buckets and window[f"{name}+Inf"]:
            found |= {f"{kind}_p{q}_s": quantile(sorted(buckets), q / 100) for q in (50, 95)}
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
