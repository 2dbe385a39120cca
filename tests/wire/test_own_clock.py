"""Stamps of other nodes: `NOW` is the reader's clock, `UNIX` the same moment in Unix time."""

from typing import Any

import pytest

from serve_app.wire.own_clock import OwnClock, SteadyTime

NOW, UNIX = 1000.0, 1_700_000_000.0


def age(clock: OwnClock, stamp: float, after_s: float, *, believed: bool = True) -> float:
    now = NOW + after_s
    return now - clock.times("phases", {"a": stamp}, now, UNIX + after_s, believed=believed)["a"]


def test_the_first_reading_believes_a_stamp_of_the_past() -> None:
    assert age(OwnClock(), UNIX - 40.0, 0.0) == 40.0
    assert age(OwnClock(), UNIX + 40.0, 0.0) == 0.0


def test_a_first_stamp_that_is_not_believed_is_new() -> None:
    assert age(OwnClock(), UNIX - 40.0, 0.0, believed=False) == 0.0


@pytest.mark.parametrize("skew_s", [-3600.0, -50.0, 0.0, 50.0])
def test_changed_stamp_is_no_older_than_the_last_reading(skew_s: float) -> None:
    clock = OwnClock()
    age(clock, UNIX - 7.0 + skew_s, 0.0)

    assert 0.0 <= age(clock, UNIX + 1.5 + skew_s, 2.0) <= 2.0
    assert 3.0 <= age(clock, UNIX + 1.5 + skew_s, 5.0) <= 5.0


def test_between_readings_a_stamp_of_the_same_clock_is_believed() -> None:
    clock = OwnClock()
    clock.times("phases", {}, NOW, UNIX)

    assert age(clock, UNIX + 21.0, 60.0) == 39.0


def test_drain_keeps_its_written_length() -> None:
    clock = OwnClock()
    document: dict[str, Any] = {"phase": "draining", "since": UNIX - 50.0, "until": UNIX + 250.0}
    clock.phases("Engine-a", {}, NOW, UNIX)

    moved = clock.phases("Engine-a", {"r": document}, NOW + 1.0, UNIX + 1.0)

    assert moved["r"] == {"phase": "draining", "since": NOW, "until": NOW + 300.0}


@pytest.mark.parametrize("step_s", [-3600.0, -310.0, 310.0, 3600.0])
def test_step_of_the_clock_changes_durations_by_a_tenth(step_s: float) -> None:
    wall, monotonic = [1_800_000_000.0], [50.0]
    clock = SteadyTime(lambda: wall[0], lambda: monotonic[0])

    def wait(seconds: float) -> float:
        wall[0] += seconds
        monotonic[0] += seconds
        return clock()

    began = clock()
    wall[0] += step_s
    assert clock() == began
    assert abs(wait(10.0) - began - 10.0) == pytest.approx(1.0)
    assert wait(40_000.0) == pytest.approx(wall[0])


def test_clock_that_was_days_ahead_is_corrected_at_once() -> None:
    wall = [1_800_000_000.0]
    clock = SteadyTime(lambda: wall[0], lambda: 50.0)
    wall[0] -= 5 * 86_400.0

    assert clock() == wall[0]
