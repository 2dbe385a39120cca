"""From counts to figures."""

import numpy as np
import pytest

from replay.fleet import layout
from replay.result import Series, background_of, lanes_of, percentiles, windows_of
from tests.replay.fleet.build import fleet, serve
from traces.backlog import Backlog


def test_percentiles_are_true_to_a_hundredth() -> None:
    draw = np.random.default_rng(0)
    values = np.exp(draw.normal(-3.0, 1.5, 20_000))
    places = (np.log(values / layout.SHORTEST_S) / np.log(layout.RATIO)).astype(int)
    found = percentiles(np.bincount(places, minlength=layout.BINS).astype(float))

    assert found.count == 20_000
    assert found.mean_s == pytest.approx(values.mean(), rel=0.01)
    assert found.at_s == pytest.approx(np.percentile(values, [50, 90, 95, 99]), rel=0.012)


@pytest.mark.parametrize(
    ("requests", "ok", "itl", "itl_ok", "attained"),
    [
        (20, 19, 100, 95, True),
        (20, 18, 100, 95, False),
        (20, 19, 100, 94, False),
        (0, 0, 0, 0, True),
        (0, 0, 100, 94, False),
        (1, 1, 0, 0, True),
        (1, 0, 0, 0, False),
    ],
)
def test_minute_is_attained_by_shares_within_targets(
    requests: int, ok: int, itl: int, itl_ok: int, attained: bool
) -> None:
    made = fleet()
    row = made.memory.windows[3]
    row["requests"], row["ttft_ok"], row["itl"], row["itl_ok"] = requests, ok, itl, itl_ok
    windows, warm = windows_of(made, 95.0, 200.0)

    assert (len(windows.attained), len(warm)) == (4, 4)
    assert windows.attained[3] == warm[3] == attained
    assert windows.attained[:3].tolist() == [1, 1, 1]


def test_warm_attainment_ignores_cold_requests() -> None:
    made = fleet()
    row = made.memory.windows[0]
    # Of 30, ten were held, one of them answered in time; of the others all.
    row["requests"], row["ttft_ok"], row["cold"], row["cold_ok"] = 30, 21, 10, 1
    windows, warm = windows_of(made, 95.0, 59.0)

    assert (windows.attained.tolist(), warm.tolist()) == ([0], [1])


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


def test_timeline_counts_both_queues() -> None:
    held = fleet(0)
    serve(held, (0.0, 10, 1), (0.1, 10, 1), until=1.0)
    queued = fleet(1)
    serve(queued, *[(0.0, 10, 1000)] * 6, until=1.0)
    series = Series()
    series.note(held, None)
    series.note(queued, None)

    assert series.timeline().held.tolist() == [2.0, 0.0]
    assert series.timeline().queued.tolist() == [2.0, 2.0]


def test_lanes_are_told_apart_only_if_there_are_several() -> None:
    made = fleet()
    row, totals = made.memory.windows[0], made.memory.totals
    row["requests"], row["ttft_ok"] = 40, 37
    windows, _ = windows_of(made, 95.0, 59.0)
    assert lanes_of(made, 95.0, windows) == ()

    row["interactive"], row["interactive_ok"] = 10, 10
    interactive, standard = lanes_of(made, 95.0, windows)
    assert (interactive.lane, interactive.requests, interactive.ttft_ok, interactive.attainment) == (
        "interactive", 10, 1.0, 1.0,
    )  # fmt: skip
    assert (standard.lane, standard.requests, standard.ttft_ok, standard.attainment) == (
        "standard", 30, 0.9, 0.0,
    )  # fmt: skip
    totals["background_arrivals"] = 7
    *_, background = lanes_of(made, 95.0, windows)
    assert (background.lane, background.requests, background.attainment) == ("background", 7, None)


def test_background_work_is_late_after_its_deadline() -> None:
    made = fleet()
    assert background_of(made, None, 600.0) is None
    made.memory.totals["background_arrivals"] = 30
    rows = made.memory.windows
    rows["background_arrivals"][1] = 30
    rows["background_finished"][[3, 5]] = 10, 20
    by_five, by_six = (Backlog(0.2, 60.0, minutes * 60.0) for minutes in (4, 5))

    found = [background_of(made, each, 600.0) for each in (None, by_five, by_six)]
    assert [work.late for work in found if work is not None] == [0, 20, 0]
