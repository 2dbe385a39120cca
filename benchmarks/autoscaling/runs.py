"""The replays: every policy on every window, peers over a grid, our policy in other circumstances."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import product

from benchmarks.autoscaling.windows import Window
from benchmarks.peers.policies import PUBLISHED
from replay.defaults import KNOBS, ORACLE, OURS, PROFILE, STATIC
from replay.profile import load_profile
from replay.result import PERCENTILES, Percentiles
from replay.run import replay
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.settings.knobs import Knobs, StartingValues

GRID = (
    "ray:3", "ray:7", "ray:14", "ray:20",
    "kpa:3", "kpa:7", "kpa:10", "kpa:14", "kpa:20",
    "hpa:ongoing=5", "hpa:ongoing=7", "hpa:ongoing=14", "hpa:ongoing=20", "hpa:waiting=0.5",
    "apa:3", "apa:7", "apa:10", "apa:14", "apa:20",
    "dynamo:itl=0.0135,ttft=0.13,interval=60", "dynamo:itl=0.018,ttft=0.18,interval=60",
)  # fmt: skip
"""Peers at other settings than the published ones, for tuning each to a window."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Other circumstances in which our policy is replayed."""

    name: str
    title: str
    profile: str = PROFILE
    cold_start_s: tuple[float, float] | None = None
    """None: as the profile has it."""
    prior: float = 1.0
    """Factor on each coefficient of the step time that the policy begins with."""

    @property
    def against_oracle(self) -> bool:
        """Whether its cost is a ratio to the oracle's, because the fleet itself differs."""
        return self.prior == 1.0

    @property
    def knobs(self) -> Knobs:
        """The default knobs, with a wrong prior as starting values."""
        if self.prior == 1.0:
            return KNOBS
        step = StepTimeFit().step_time()
        scaled = {f"step_{name}": self.prior * value for name, value in asdict(step).items()}
        return KNOBS.model_copy(update={"starting_values": StartingValues.model_validate(scaled)})


BASE = Variant("", "as usual")
VARIANTS = (
    Variant("prior-half", "prior of the step time halved", prior=0.5),
    Variant("prior-double", "prior of the step time doubled", prior=2.0),
    # Spread by a fifth either way, as 60 to 90 s are.
    Variant("cold-20", "cold starts of 16 to 24 s", cold_start_s=(16.0, 24.0)),
    Variant("cold-180", "cold starts of 144 to 216 s", cold_start_s=(144.0, 216.0)),
    Variant("h100", "H100 in place of A100, prior as it was", profile="h100"),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One replay."""

    window: Window
    policy: str
    seed: int
    variant: Variant = BASE

    @property
    def label(self) -> str:
        """The name of the replay in progress and errors."""
        variant = f", {self.variant.name}" if self.variant.name else ""
        return f"{self.window.name} {self.policy} seed {self.seed}{variant}"


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one replay: times in seconds, shares from 0 to 1."""

    window: str
    policy: str
    """As it was asked for."""
    variant: str
    seed: int
    name: str
    """As the policy calls itself: `static:12` where the least static fleet was asked for."""
    gpu_seconds: float
    attainment: float
    attainment_warm: float
    ttft_ok: float
    ttft_ok_warm: float
    infeasible: float
    cold: float
    """Requests that waited for a cold start."""
    ttft_cold_p95_s: float
    starts: int
    changes: int
    peak: int
    wall_s: float


def plan(
    windows: Sequence[Window], seeds: Sequence[int], policies: Collection[str] | None = None
) -> list[Job]:
    """All replays, the longest first, so that none runs alone at the end.

    The oracle, the grid and other circumstances are replayed with the first seed only.

    Args:
        windows: The windows to replay.
        seeds: Seeds of cold starts and of everything else that is drawn.
        policies: Only these; all if None. A policy that is not published gets all seeds.
    """
    few = seeds[:1]
    everyone = (OURS, *PUBLISHED, STATIC)
    others = sorted(set(policies or ()) - {*everyone, *GRID, ORACLE})
    rows = [(policy, seed, BASE) for policy in (*everyone, *others) for seed in seeds]
    rows += [(policy, seed, BASE) for policy in (ORACLE, *GRID) for seed in few]
    rows += [(OURS, seed, variant) for variant, seed in product(VARIANTS, few)]
    rows += [(ORACLE, seed, variant) for variant, seed in product(VARIANTS, few) if variant.against_oracle]
    jobs = [
        Job(window, policy, seed, variant)
        for window in windows
        for policy, seed, variant in rows
        if policies is None or policy in policies
    ]
    slow = {ORACLE: 2, OURS: 1}
    return sorted(jobs, key=lambda job: (-slow.get(job.policy, 0), -job.window.requests))


def execute(job: Job) -> Run:
    """Replay `job`. Raises TraceError for a line of the window that is no request."""
    variant = job.variant
    result = replay(
        job.window.open(),
        policy=job.policy,
        knobs=variant.knobs,
        profile=load_profile(variant.profile),
        cold_start_s=variant.cold_start_s,
        seed=job.seed,
    )
    shares = ("attainment", "attainment_warm", "ttft_ok", "ttft_ok_warm", "infeasible")
    counts = ("starts", "changes", "peak", "wall_s")
    return Run(
        window=job.window.name,
        policy=job.policy,
        variant=variant.name,
        seed=job.seed,
        name=result.policy,
        gpu_seconds=result.gpu_seconds.total,
        cold=result.ttft_cold.count,
        ttft_cold_p95_s=_p95(result.ttft_cold),
        **{name: getattr(result, name) for name in (*shares, *counts)},
    )


def _p95(latency: Percentiles) -> float:
    return latency.at_s[PERCENTILES.index(95.0)]
