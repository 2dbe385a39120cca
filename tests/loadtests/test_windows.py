from itertools import pairwise

import pytest

from loadtests.columns import Columns
from loadtests.percentiles import NEVER
from loadtests.summary import MOST_WINDOWS, width_s, windows
from tests.loadtests import samples
from tests.loadtests.samples import error, record


@pytest.mark.parametrize(
    ("duration_s", "width"),
    [(0.5, 1), (120, 1), (121, 2), (600, 5), (1800, 15), (3600, 30), (10_800, 120), (36_000, 300)],
)
def test_the_width_is_the_narrowest_round_one(duration_s: float, width: float) -> None:
    assert width_s(duration_s) == width


@pytest.mark.parametrize("duration_s", [36_001, 100_000, 604_800])
def test_beyond_ten_hours_there_are_still_not_too_many(duration_s: float) -> None:
    assert width_s(duration_s) % 300 == 0
    assert duration_s / width_s(duration_s) <= MOST_WINDOWS


def test_requests_count_by_intended_time_and_gaps_by_arrival() -> None:
    answer = record(at_s=0.2, pieces_s=(1.5, 2.5, 2.75), ended_s=2.8)
    first, second, third = windows(Columns.of([answer]), 3.0)

    assert [one.arrivals for one in (first, second, third)] == [1, 0, 0]
    assert first.rate_rps == 1.0
    assert first.ttft_s is not None
    assert first.ttft_s.p95 == pytest.approx(1.3)
    assert second.ttft_s is second.itl_s is first.itl_s is None
    assert third.itl_s is not None
    assert (third.itl_s.count, third.itl_s.max) == (2, 1.0)


def test_errors_and_what_never_came_show_where_they_were_to_come() -> None:
    refused = error("rejected", 429, "full", at_s=1.5, ended_s=2.9)
    _, second, third = windows(Columns.of([refused]), 3.0)

    assert (second.errors, third.errors) == (1, 0)
    assert second.ttft_s is not None
    assert second.ttft_s.p50 == NEVER


def test_open_streams_are_an_average_over_the_window() -> None:
    streams = [
        record(sent_s=0.0, pieces_s=(1.5,), ended_s=1.5),
        record(sent_s=0.75, pieces_s=(1.0,), ended_s=1.0),
    ]

    told = [one.open_streams for one in windows(Columns.of(streams), 2.0)]

    assert told == pytest.approx([1.25, 0.5])


def test_windows_join_up_to_the_end_of_what_ended_last() -> None:
    of = samples.cold_burst()
    told = windows(Columns.of(of.records), of.duration_s)

    assert told[0].start_s == 0
    assert told[-1].end_s == of.duration_s
    assert all(one.end_s == after.start_s for one, after in pairwise(told))
    assert sum(one.arrivals for one in told) == len(of.records)
    assert sum(one.itl_s.count for one in told if one.itl_s) == len(Columns.of(of.records).gap_s)


def test_a_remainder_is_no_window_of_its_own() -> None:
    answers = [record(at_s=at, pieces_s=(at + 0.1,)) for at in (0.5, 1.5, 2.001)]
    told = windows(Columns.of(answers), 2.2)

    assert [(one.start_s, one.end_s, one.arrivals) for one in told] == [(0, 1, 1), (1, 2.2, 2)]
    assert [one.end_s for one in windows(Columns.of(answers), 2.6)] == [1, 2, 2.6]


def test_nothing_has_no_windows() -> None:
    assert windows(Columns.of([]), 0.0) == ()
    assert len(windows(Columns.of([]), 5.0)) == 5
