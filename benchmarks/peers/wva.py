"""llm-d's workload variant autoscaler, by spare capacity."""

from __future__ import annotations

from benchmarks.peers.wva_metrics import EVERY, SCRAPE_S, Metrics
from replay.sample import Sample

KV_THRESHOLD = 0.80
QUEUE_THRESHOLD = 5.0
_KV_SPARE = 0.1
_QUEUE_SPARE = 3.0
_EPS = 1e-9


class LlmdWva:
    """llm-d WVA's first saturation analyzer, with its defaults, one variant.

    Every 30 s, by each replica's peaks of a minute: it is saturated with 80 % of its KV cache in use or 5
    requests waiting. Over those that are not, the spare room to these thresholds is averaged; one replica is
    added where it is below 10 % or 3 requests, or nothing is left unsaturated. One is taken where two or more
    are unsaturated and their load spread over one fewer still leaves that room. Nothing is decided while
    replicas asked for and ready differ. Scaling to zero is off by default, so one replica is the least. What
    it decides is acted on at once here; it hands its number to an HPA, which can only be later.

    Source: llm-d workload-variant-autoscaler, `internal/saturation` and
    `config/samples/saturation-scaling-config.yaml`.
    """

    name = "wva"
    interval_s = SCRAPE_S

    def __init__(self) -> None:
        self._metrics = Metrics()
        self._turns = 0

    def decide(self, sample: Sample) -> int:
        """One scrape, and every second time a decision."""
        self._metrics.scrape(sample)
        self._turns += 1
        if sample.target < 1:
            return 1
        if (self._turns - 1) % EVERY or sample.ready != sample.target:
            return sample.target
        return max(1, sample.target + self._step())

    def _step(self) -> int:
        spare = [
            (KV_THRESHOLD - replica.kv_usage, QUEUE_THRESHOLD - replica.waiting)
            for replica in self._metrics.replicas()
            if replica.kv_usage < KV_THRESHOLD and replica.waiting < QUEUE_THRESHOLD
        ]
        count = len(spare)
        if count == 0:
            return 1
        kv = sum(kv for kv, _ in spare) / count
        queue = sum(queue for _, queue in spare) / count
        if kv < _KV_SPARE or queue < _QUEUE_SPARE:
            return 1
        if count < 2:
            return 0
        spread = count / (count - 1)
        kv_left = KV_THRESHOLD - (KV_THRESHOLD - kv) * spread
        queue_left = QUEUE_THRESHOLD - (QUEUE_THRESHOLD - queue) * spread
        return -1 if kv_left >= _KV_SPARE - _EPS and queue_left >= _QUEUE_SPARE - _EPS else 0
