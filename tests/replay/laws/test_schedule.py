"""Replicas by a timetable."""

import pytest

from replay.hindsight.timetable import Schedule
from tests.benchmarks.peers.build import sample


def test_it_asks_for_the_entry_in_force() -> None:
    law = Schedule([(5.0, 2), (10.0, 7), (10.5, 0)], name="oracle", interval_s=0.5)
    asked = [law.decide(sample(at)) for at in (0.0, 5.0, 9.5, 10.0, 10.5, 99.0)]

    assert asked == [2, 2, 2, 7, 0, 0]
    assert (law.name, law.interval_s) == ("oracle", 0.5)


def test_entries_between_two_looks_are_passed_over() -> None:
    law = Schedule([(0.0, 1), (1.0, 2), (2.0, 3)])
    assert [law.decide(sample(at)) for at in (0.0, 60.0)] == [1, 3]


@pytest.mark.parametrize(
    ("steps", "problem"),
    [([], "at least one"), ([(1.0, 2), (1.0, 3)], "must rise"), ([(0.0, -1)], "replicas at 0 s = -1")],
)
def test_a_timetable_that_is_none_is_refused(steps: list[tuple[float, int]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Schedule(steps)
