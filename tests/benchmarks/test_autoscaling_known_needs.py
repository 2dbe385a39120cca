from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.autoscaling.known_needs import (
    Needs,
    Setting,
    grid,
    hold,
    least,
    needs_of,
    oracle_text,
    search,
    starts_text,
    text,
)
from benchmarks.autoscaling.windows import Window

SMOOTH = Window("smooth", Path("smooth.csv"), "", None, 700, 420.0, 1.2, 0.0)


def needs(*replicas: int, initial: int = 0) -> Needs:
    """A hundred requests in every minute that needs a replica."""
    wanted = np.array(replicas)
    return Needs(SMOOTH, wanted, np.where(wanted > 0, 100, 0), initial, oracle=600.0, static=1200.0)


def test_a_need_is_the_fewest_from_which_on_a_minute_is_attained() -> None:
    # Fleets of one to four; the last minute has no request, the third is missed by three replicas again.
    attained = np.array([[1, 0, 0, 1], [1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]], dtype=bool)

    assert needs_of(attained, np.array([9, 9, 9, 0])).tolist() == [1, 3, 4, 0]


def test_it_holds_a_quantile_of_the_past_and_at_least_the_last_need() -> None:
    setting = Setting(minutes=10, quantile=0.5, by="minutes", factor=1.0)

    # Held: 3 at the beginning, for five minutes; then the median of 1, 1, 1, 1, 4 and the last, 4; then of
    # those and 4, which is 1, and 4 again.
    attainment, gpu_seconds = hold(needs(1, 1, 1, 1, 4, 4, 4, initial=3), setting)

    assert gpu_seconds == 60 * (5 * 3 + 4 + 4)
    assert attainment == pytest.approx(6 / 7)


def test_a_factor_and_weights_by_requests_count() -> None:
    burst = needs(1, 1, 1, 1, 4, 1, 1)
    burst.requests[4] = 1000

    assert hold(burst, Setting(10, 0.6, "minutes", 1.0))[1] == 60 * (0 + 1 + 1 + 1 + 1 + 4 + 1)
    assert hold(burst, Setting(10, 0.6, "requests", 1.0))[1] == 60 * (0 + 1 + 1 + 1 + 1 + 4 + 4)
    assert hold(burst, Setting(10, 0.6, "requests", 1.5))[1] == 60 * (0 + 2 + 2 + 2 + 2 + 6 + 6)


def test_what_is_asked_for_serves_a_start_later_and_is_paid_for_at_once() -> None:
    setting = Setting(minutes=10, quantile=1.0, by="minutes", factor=1.0)
    rising = needs(1, 1, 1, 1, 1, 1, 4, 4, 4, initial=1)

    assert hold(rising, setting) == (pytest.approx(8 / 9), 60 * (7 * 1 + 2 * 4))
    assert hold(rising, setting, start=1) == (pytest.approx(7 / 9), 60 * (7 * 1 + 2 * 4))


def test_the_page_tells_how_many_settings_are_left_when_starts_take_time() -> None:
    said = starts_text([needs(1, 1, 1, 1, 1, 1, 4, 4, 4, initial=4)])

    assert "| 0 min | 0 | none attains it | smooth none attains it |" in said
    assert "| 1 min | 1,100 | 2.00 | smooth 2.00 |" in starts_text([needs(*[2] * 10, initial=2)])


def test_after_five_silent_minutes_nothing_is_held() -> None:
    setting = Setting(10, 1.0, "minutes", 1.0)

    assert hold(needs(2, 2, 0, 0, 0, 0, 0, 0, 2), setting)[1] == 60 * (0 + 2 * 6 + 0 + 0)


def test_the_least_that_would_do_gives_up_what_costs_most_a_request_as_far_as_the_goal_allows() -> None:
    each = needs(2, 0, 9, 3)
    assert least(each) == 60 * (2 + 9 + 3)

    each.requests[2] = 2  # of 202 requests, which may miss two
    assert least(each) == 60 * (2 + 3)
    assert "smooth 0.50" in oracle_text([each])


def test_the_page_names_the_cheapest_that_meets_all_and_the_nearest_within_the_budget() -> None:
    found = search([needs(*[2] * 10, initial=2)])

    assert len(found) == len(list(grid()))
    said = text(found)
    assert f"- {sum(not each.short for each in found)} of them meet" in said
    assert "costs 2.00 times the oracle" in said
    assert "smooth 2.00@100.0" in said
    assert "- 0 cost at most 1.25" in said


def test_the_page_says_when_none_meets_what_is_wanted() -> None:
    said = text(search([replace(needs(1, 2, 4, 8, 16, 32), oracle=6000.0)]))

    assert "- 0 of them meet" in said
    assert "The nearest to the attainment wanted" in said
