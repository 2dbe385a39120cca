"""The fleet over time, in a bounded number of points."""

from replay.figures import Series
from tests.replay.fleet.build import fleet, serve


def test_points_stay_bounded_and_evenly_spaced_however_long_it_takes() -> None:
    made = fleet(1)
    series = Series()
    for second in range(0, 20_000, 2):
        made.now = float(second)
        if made.now >= series.next_at:
            series.note(made, None)
    timeline = series.timeline()

    assert 1000 <= len(timeline.at_s) <= 2000
    assert timeline.interval_s == 16.0
    assert set(timeline.at_s[1:] - timeline.at_s[:-1]) == {16.0}
    assert timeline.at_s[0] == 0.0
    assert timeline.at_s[-1] >= 20_000 - 32


def test_rates_are_of_the_time_between_two_points() -> None:
    made = fleet(1)
    series = Series()
    series.note(made, 3)
    serve(made, *[(0.5 * number, 10, 1) for number in range(8)], until=4.0)
    series.note(made, None)
    timeline = series.timeline()

    assert timeline.arrivals_rps.tolist() == [0.0, 2.0]
    assert (timeline.wanted.tolist(), timeline.target.tolist()) == ([3.0, 1.0], [1.0, 1.0])


def test_what_waits_is_what_is_held_and_what_engines_queue() -> None:
    held = fleet(0)
    serve(held, (0.0, 10, 1), (0.1, 10, 1), until=1.0)
    queued = fleet(1)
    serve(queued, *[(0.0, 10, 1000)] * 6, until=1.0)
    series = Series()
    series.note(held, None)
    series.note(queued, None)

    assert series.timeline().held.tolist() == [2.0, 0.0]
    assert series.timeline().queued.tolist() == [2.0, 2.0]
