"""The replays to run: every policy on every window, peers over a grid of settings, ours under variants."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from benchmarks.autoscaling.windows import Window
from benchmarks.peers.laws import PUBLISHED
from replay.defaults import ORACLE, OURS, PROFILE, STATIC

PARTS = ("results", "tuned", "robustness")

GRID = (
    "ray:3", "ray:7", "ray:14", "ray:20",
    "kpa:3", "kpa:7", "kpa:10", "kpa:14", "kpa:20",
    "hpa:ongoing=5", "hpa:ongoing=7", "hpa:ongoing=14", "hpa:ongoing=20", "hpa:waiting=0.5",
    "apa:3", "apa:7", "apa:10", "apa:14", "apa:20",
    "dynamo:itl=0.0135,ttft=0.13,interval=60", "dynamo:itl=0.018,ttft=0.18,interval=60",
)  # fmt: skip
"""Peers at other settings than those they are published with, for tuning each to a window."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Other conditions under which ours is replayed."""

    name: str
    title: str
    profile: str = PROFILE
    cold_start_s: tuple[float, float] | None = None
    """None: as the profile has it."""
    prior: float = 1.0
    """Factor on every coefficient of the step time that the policy begins with."""

    @property
    def against_oracle(self) -> bool:
        """Whether its cost is a ratio to the oracle's, because the fleet itself differs."""
        return self.prior == 1.0


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
    def key(self) -> str:
        """A key of the inputs; the code is not part of it."""
        inputs = {
            "window": self.window.digest,
            "cut_s": self.window.cut_s,
            "policy": self.policy,
            "seed": self.seed,
            **{name: value for name, value in asdict(self.variant).items() if name not in ("name", "title")},
        }
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:24]

    @property
    def label(self) -> str:
        """The name of the replay in progress and errors."""
        variant = f", {self.variant.name}" if self.variant.name else ""
        return f"{self.window.name} {self.policy} seed {self.seed}{variant}"

    @property
    def effort(self) -> float:
        """Roughly the seconds it takes."""
        return effort(self.policy, self.window.requests, self.window.duration_s)


# Seconds a minute of the trace, and a thousand requests: on two cores of an AMD EPYC.
_PEER_EFFORT = (0.01, 0.015)
_EFFORT = {OURS: (0.09, 0.02), ORACLE: (0.3, 0.3), STATIC: (0.02, 0.1)}


def effort(policy: str, requests: int, duration_s: float) -> float:
    """Roughly the seconds that a replay of so many requests takes; only the proportions matter."""
    per_minute, per_thousand = _EFFORT.get(policy, _PEER_EFFORT)
    return duration_s / 60.0 * per_minute + requests / 1000.0 * per_thousand


def plan(
    windows: Sequence[Window],
    seeds: Sequence[int],
    policies: Iterable[str] | None = None,
    parts: Iterable[str] = PARTS,
    *,
    thorough: bool = False,
) -> list[Job]:
    """All replays, the longest first, so that none runs alone at the end.

    Args:
        windows: On which.
        seeds: Of cold starts and of everything else that is drawn.
        policies: Only these; all if None.
        parts: Of `PARTS`: policies as published, peers over their grid, ours under other circumstances.
        thorough: All seeds for the oracle, the grid and the other circumstances too, not only the first.
    """
    wanted = None if policies is None else set(policies)
    few = seeds if thorough else seeds[:1]
    rows: list[tuple[str, Sequence[int], Variant]] = []
    if "results" in parts:
        everyone = (OURS, *PUBLISHED, STATIC)
        named = () if wanted is None else sorted(wanted - {*everyone, *GRID, ORACLE})
        rows += [(policy, seeds, BASE) for policy in (*everyone, *named)]
        rows.append((ORACLE, few, BASE))
    if "tuned" in parts:
        rows += [(policy, few, BASE) for policy in GRID]
    if "robustness" in parts:
        for variant in VARIANTS:
            rows.append((OURS, few, variant))
            if variant.against_oracle:
                rows.append((ORACLE, few, variant))
    jobs = [
        Job(window, policy, seed, variant)
        for window in windows
        for policy, its_seeds, variant in rows
        if wanted is None or policy in wanted
        for seed in its_seeds
    ]
    return sorted(jobs, key=lambda job: -job.effort)
