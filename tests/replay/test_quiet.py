"""Idle time is skipped, and a replay that steps through it comes to the same."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.fleet.fleet import Fleet
from replay.production import Production
from replay.result import Result
from replay.simulation import simulate
from serve_app.settings.knobs import Knobs, Schedule
from tests.replay.fleet.build import ENGINES, conditions
from traces import ArrayTrace


class Skipping(Production):
    """Counts the steps that are taken."""

    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs)
        self.knobs = knobs
        self.turns = 0

    def step(self, fleet: Fleet) -> int:
        self.turns += 1
        return super().step(fleet)


class Stepping(Skipping):
    """Takes every step."""

    def quiet_until(self, next_arrival: float) -> float:
        return 0.0


def bursts(*gaps_s: float, rps: float = 6.0, seed: int = 0) -> ArrayTrace:
    """Bursts of 20 to 60 seconds with silence between them."""
    draw = np.random.default_rng(seed)
    start, arrivals = 0.0, []
    for gap_s in (0.0, *gaps_s):
        start += gap_s
        seconds = draw.uniform(20.0, 60.0)
        arrivals.append(start + np.sort(draw.uniform(0.0, seconds, 1 + draw.poisson(rps * seconds))))
        start += seconds
    at = np.concatenate(arrivals)
    return ArrayTrace("bursts", at, draw.integers(50, 1500, len(at)), draw.integers(1, 200, len(at)))


def replayed(controller: Production, trace: ArrayTrace, knobs: Knobs, start_s: float, seed: int) -> Result:
    return simulate(
        trace,
        controller,
        ENGINES,
        conditions(cold_start_s=(start_s, 1.5 * start_s), body_noise=0.2, start_failures=0.1, seed=seed),
        bounds=(knobs.min_replicas, knobs.max_replicas),
        initial=max(knobs.min_replicas, 1),
    )


def figures(result: Result) -> dict[str, Any]:
    """Everything of a result but the time it took and the numbers of its records, which heartbeats use up."""
    found = asdict(result)
    del found["wall_s"]
    for record in found["decisions"]:
        del record["seq"]
    return {
        key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in found.items()
    } | {
        part: {key: np.asarray(value).tolist() for key, value in found[part].items()}
        for part in ("windows", "timeline")
    }


def both(trace: ArrayTrace, knobs: Knobs, start_s: float = 6.0, seed: int = 0) -> tuple[int, int]:
    """Hold both ways to the same figures; return the steps of each."""
    skipping, stepping = Skipping(knobs), Stepping(knobs)
    skipped = replayed(skipping, trace, knobs, start_s, seed)
    stepped = replayed(stepping, trace, knobs, start_s, seed)
    assert figures(skipped) == figures(stepped)
    return skipping.turns, stepping.turns


@st.composite
def any_knobs(draw: st.DrawFn) -> Knobs:
    # Replays begin on a Tuesday, 22:13:20 UTC.
    begin = draw(st.sampled_from(["22:20", "22:31", "23:00"]))
    window = Schedule(start=begin, end="23:05", min_replicas=draw(st.integers(1, 3)))
    return Knobs(
        min_replicas=draw(st.integers(0, 3)),
        max_replicas=6,
        downscale_delay_s=draw(st.sampled_from([0.0, 10.0, 200.0, None])),
        downscale_to_zero_delay_s=draw(st.sampled_from([0.0, 20.0, 300.0, 900.0, 3600.0])),
        upscale_delay_s=draw(st.sampled_from([0.0, 2.0, 5.0])),
        forecast=draw(st.booleans()),
        schedules=(window,) if draw(st.booleans()) else (),
    )


@pytest.mark.long
@settings(max_examples=4, deadline=None)
@given(
    knobs=any_knobs(),
    gap_s=st.floats(30.0, 800.0),
    start_s=st.sampled_from([0.7, 6.0, 45.0, 320.0]),
    seed=st.integers(0, 1000),
)
def test_skipping_idle_time_changes_no_figure(knobs: Knobs, gap_s: float, start_s: float, seed: int) -> None:
    both(bursts(gap_s, seed=seed), knobs, start_s, seed)


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(min_replicas=0, max_replicas=6, downscale_to_zero_delay_s=120),
        Knobs(min_replicas=0, max_replicas=6, downscale_to_zero_delay_s=3600),
        Knobs(min_replicas=2, max_replicas=6),
    ],
)
def test_a_long_silence_takes_few_steps(knobs: Knobs) -> None:
    skipping, stepping = both(bursts(900.0), knobs)

    assert stepping > 1_800
    assert skipping < 700


@pytest.mark.long
def test_a_week_of_idle_nights_takes_few_steps() -> None:
    night_s, nights = 14 * 3600.0, 7
    day = Schedule(start="08:00", end="18:00", min_replicas=2)
    skipping = Skipping(Knobs(max_replicas=6, downscale_to_zero_delay_s=3600, schedules=(day,)))

    replayed(skipping, bursts(*[night_s] * nights), skipping.knobs, start_s=6.0, seed=0)

    assert skipping.turns < nights * 1_000  # of 100,800 a night
