"""How far a run is."""

from loadtests.live_view import Progress
from tests.loadtests import samples


def test_a_later_turn_is_open_from_its_own_time_on() -> None:
    progress = Progress([0.0, 1.0], 60.0, at_s=2.0)
    progress.add([samples.record(0, 0.0, session=0, turn=1, next_at_s=10.0)])

    assert (progress.due, progress.open) == (2, 1)
    progress.at_s = 10.0
    assert (progress.due, progress.open) == (3, 2)


def test_a_closed_loop_counts_what_has_ended() -> None:
    progress = Progress(planned_s=60.0)
    progress.add([samples.record(0, 0.0, session=0, turn=1, next_at_s=10.0)])

    assert (progress.due, progress.open) == (1, 0)
