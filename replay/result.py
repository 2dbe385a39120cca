"""The result of one replay: plain data, from which every report is made."""

from dataclasses import dataclass, field
from typing import Any

from traces.trace import Floats

PERCENTILES = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """One latency over the whole replay: count, mean, and the value at each of `PERCENTILES`, in seconds."""

    count: float
    mean_s: float
    at_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GpuSeconds:
    """GPU-seconds by the state of the replicas, from the start of a cold start to the end of the drain."""

    serving: float
    """Ready, with a step running."""
    idle: float
    """Ready, without one."""
    warming: float
    """Starting, failed starts included."""
    draining: float

    @property
    def total(self) -> float:
        """The GPU-seconds that are paid for."""
        return self.serving + self.idle + self.warming + self.draining


@dataclass(frozen=True, slots=True)
class Windows:
    """One-minute windows: one element each, by the minute a request arrived or a token came."""

    requests: Floats
    ttft_ok: Floats
    """Requests that saw their first token within the target."""
    cold: Floats
    """Requests that were held for a cold start."""
    rejected: Floats
    ttft_p95_s: Floats
    itl_p95_s: Floats
    """0 where no token followed another."""
    itl_ok_share: Floats
    attained: Floats
    """1 where both percentiles were within their targets, else 0; 1 without requests."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The fleet every `interval_s`, for drawing. Thinned, so that it does not grow with the trace."""

    interval_s: float
    at_s: Floats
    arrivals_rps: Floats
    wanted: Floats
    """Replicas the policy would ask for without delays and limits; the target where it does not say."""
    target: Floats
    ready: Floats
    starting: Floats
    draining: Floats
    queued: Floats
    """Held and waiting in engines."""
    held: Floats


@dataclass(frozen=True, slots=True)
class Result:
    """One policy on one trace."""

    policy: str
    trace: str
    profile: str
    seed: int
    duration_s: float
    requests: int
    rejected: int
    ttft_target_s: float
    itl_target_s: float
    percentile: float
    attainment: float
    """Request-weighted share of one-minute windows with TTFT and ITL at the percentile within the targets."""
    attainment_warm: float
    """`attainment` without the requests that were held for a cold start."""
    ttft_ok: float
    """Share of requests within the TTFT target."""
    ttft_ok_warm: float
    infeasible: float
    """Share of requests whose TTFT on an empty replica already misses the target."""
    ttft: Percentiles
    ttft_warm: Percentiles
    ttft_cold: Percentiles
    """TTFT of requests that were held for a cold start."""
    itl: Percentiles
    e2e: Percentiles
    gpu_seconds: GpuSeconds
    price_per_gpu_hour: float
    starts: int
    failed_starts: int
    peak: int
    """Most replicas paid for at one time."""
    changes: int
    """Changes of the target."""
    preemptions: int
    cached_share: float
    """Of the prompt tokens, those that prefix caches held; 0 for a trace without prefix blocks."""
    moves: int
    """Of streams from draining replicas to others."""
    windows: Windows
    timeline: Timeline
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """Records of the production policy's changes, as `/autoscaling/decisions` has them; empty for others."""
    wall_s: float = 0.0
    oracle_gpu_seconds: float | None = None
    peers: dict[str, dict[str, float]] = field(default_factory=dict)
    """Figures of other policies on the same trace, by policy: gpu_seconds, attainment, ttft_ok and so on."""
    knobs: dict[str, Any] = field(default_factory=dict)
    """The settings of the policy, by name."""
    unanswered: int = 0
    """Requests that were admitted and had no token when the replay ended; they count as misses."""
    policy_errors: int = 0
    """Decisions of the policy that raised an error; the target was kept."""

    @property
    def oracle_ratio(self) -> float | None:
        """GPU-seconds over the oracle's."""
        if not self.oracle_gpu_seconds:
            return None
        return self.gpu_seconds.total / self.oracle_gpu_seconds

    def summary(self) -> dict[str, float]:
        """The figures that a comparison of policies shows."""
        return {
            "gpu_seconds": self.gpu_seconds.total,
            "attainment": self.attainment,
            "ttft_ok": self.ttft_ok,
            "starts": float(self.starts),
            "changes": float(self.changes),
            "peak": float(self.peak),
        }

    @property
    def dollars(self) -> float:
        """What the GPU-seconds cost."""
        return self.gpu_seconds.total / 3600.0 * self.price_per_gpu_hour
