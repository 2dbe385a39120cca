"""The replays: each trace on static fleets of several sizes, once for each routing."""

from dataclasses import dataclass
from pathlib import Path

from loadtests.traces.file_trace import open_trace
from replay.fleet.conditions import ROUTINGS
from replay.profile import load_profile
from replay.run import replay
from serve_app.settings.knobs import Knobs

TTFT_TARGET_S = 3.0
"""Prompts have 12,000 tokens on average, and 0.6 s of prefill on the slower of the two GPUs."""
ITL_TARGET_S = 0.1
FLEETS = {"a100-80gb": (5, 6, 7, 8, 10, 12), "h100": (2, 3, 4, 5, 6, 8)}
"""Replicas, by hardware profile: from too few for any routing to more than the best one needs."""


@dataclass(frozen=True, slots=True)
class Job:
    """One replay."""

    trace: Path
    profile: str
    replicas: int
    routing: str

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"{self.trace.stem} {self.profile} x {self.replicas} {self.routing}"

    @property
    def effort(self) -> float:
        """Roughly the seconds it takes."""
        return 3.0


@dataclass(frozen=True, slots=True)
class RoutingRun:
    """Shares from 0 to 1."""

    gpu_seconds: float
    attainment: float
    ttft_ok: float
    ttft_p50_s: float
    ttft_p95_s: float
    cached_share: float
    wall_s: float


def plan(traces: list[Path]) -> list[Job]:
    """All replays of these traces."""
    return [
        Job(trace, profile, replicas, routing)
        for trace in traces
        for profile, fleets in FLEETS.items()
        for replicas in fleets
        for routing in ROUTINGS
    ]


def execute(job: Job) -> RoutingRun:
    """Replay `job`. Raises what `replay` raises."""
    result = replay(
        open_trace(job.trace),
        policy=f"static:{job.replicas}",
        knobs=Knobs(max_replicas=32, ttft_target_s=TTFT_TARGET_S, itl_target_s=ITL_TARGET_S),
        profile=load_profile(job.profile),
        routing=job.routing,
    )
    p50, _, p95, _ = result.ttft.at_s
    return RoutingRun(
        result.gpu_seconds.total,
        result.attainment,
        result.ttft_ok,
        p50,
        p95,
        result.cached_share,
        result.wall_s,
    )
