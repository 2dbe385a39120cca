import numpy as np
import pytest

from replay.hindsight.timetable import Schedule, Timetable, fill_gaps
from tests.benchmarks.peers.build import sample
from traces.trace import Ints


def ints(text: str) -> Ints:
    return np.array([int(digit) for digit in text], dtype=np.int64)


@pytest.mark.parametrize(
    ("replicas", "slots", "kept"),
    [
        ("1001", 3, "1111"),  # two slots of silence are less than three
        ("10001", 3, "10001"),
        ("312013", 2, "322113"),
        ("33133", 1, "33133"),
        ("0010", 4, "0010"),  # what lies before the first and after the last is no gap
        ("21012", 4, "22222"),
    ],
)
def test_short_valleys_are_filled(replicas: str, slots: int, kept: str) -> None:
    assert fill_gaps(ints(replicas), slots).tolist() == ints(kept).tolist()


def test_starts_are_one_cold_start_early_and_stops_on_time() -> None:
    timetable = Timetable(slot_s=10.0, cold_start_s=25.0, ready=ints("1111311"))

    # Three are ready at 40 s: the two more are asked for 25 s before; two go at 50 s, and one stays.
    assert timetable.steps == [(0.0, 1), (15.0, 3), (50.0, 1), (70.0, 1)]


def test_replicas_needed_at_once_are_billed_a_whole_start() -> None:
    timetable = Timetable(slot_s=10.0, cold_start_s=75.0, ready=ints("1122200"))

    # The first is needed at once, the second at 20 s; with one that is there anyway only 55 s are left.
    assert timetable.steps[0] == (0.0, 2)
    assert timetable.prepaid(warm=0) == (2, 75.0 + 55.0)
    assert timetable.prepaid(warm=1) == (1, 55.0)
    assert timetable.prepaid(warm=2) == (0, 0.0)
    assert timetable.prepaid(warm=5) == (0, 0.0)


def test_it_asks_for_the_entry_in_force() -> None:
    schedule = Schedule([(5.0, 2), (10.0, 7), (10.5, 0)], "oracle")
    asked = [schedule.decide(sample(at)) for at in (0.0, 5.0, 9.5, 10.0, 10.5, 99.0)]

    assert asked == [2, 2, 2, 7, 0, 0]
