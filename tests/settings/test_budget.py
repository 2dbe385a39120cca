"""Periods of budgets: midnights of time zones, with daylight saving."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from serve_app.ledger.budgets import QUARTER_S
from serve_app.settings.budget import Budget, Per

ZONES = sorted(zone for zone in available_timezones() if zone not in ("localtime", "Factory"))
HOURS = {"day": (23, 25), "week": (167, 169), "month": (671, 745)}
NOW = st.floats(datetime(2024, 1, 1, tzinfo=UTC).timestamp(), datetime(2037, 1, 1, tzinfo=UTC).timestamp())
PERS: st.SearchStrategy[Per] = st.sampled_from(("day", "week", "month"))


def period(now: float, per: Per, zone: str) -> tuple[float, float]:
    return Budget(usd=1.0, per=per, timezone=zone).period(now)


@given(NOW, PERS, st.sampled_from(ZONES))
def test_a_period_contains_its_moment(now: float, per: Per, zone: str) -> None:
    start, end = period(now, per, zone)

    assert start <= now < end
    assert HOURS[per][0] * 3600 <= end - start <= HOURS[per][1] * 3600
    assert start % QUARTER_S == 0


@given(NOW, PERS, st.sampled_from(ZONES))
def test_periods_follow_each_other_without_a_gap(now: float, per: Per, zone: str) -> None:
    start, end = period(now, per, zone)

    assert period(start, per, zone) == (start, end)
    assert period(end, per, zone)[0] == end
    assert period(start - 1, per, zone)[1] == start


@given(NOW, PERS, st.sampled_from(ZONES))
def test_a_period_begins_with_its_first_day(now: float, per: Per, zone: str) -> None:
    start = datetime.fromtimestamp(period(now, per, zone)[0], ZoneInfo(zone))
    before = datetime.fromtimestamp(period(now, per, zone)[0] - 1, ZoneInfo(zone))

    assert before.date() < start.date()
    assert per != "week" or start.weekday() == 0
    assert per != "month" or start.day == 1


@pytest.mark.parametrize(
    ("zone", "month", "start", "end"),
    [
        # Summer time begins or ends within the month: 743, 721, 745 and 743.5 hours.
        ("Europe/Berlin", "2026-03-15", "2026-03-01T00:00:00+01:00", "2026-04-01T00:00:00+02:00"),
        ("America/New_York", "2026-11-15", "2026-11-01T00:00:00-04:00", "2026-12-01T00:00:00-05:00"),
        ("Australia/Sydney", "2026-04-15", "2026-04-01T00:00:00+11:00", "2026-05-01T00:00:00+10:00"),
        ("Australia/Lord_Howe", "2026-10-15", "2026-10-01T00:00:00+10:30", "2026-11-01T00:00:00+11:00"),
        ("Asia/Kolkata", "2026-02-15", "2026-02-01T00:00:00+05:30", "2026-03-01T00:00:00+05:30"),
    ],
)
def test_months_end_at_local_midnight(zone: str, month: str, start: str, end: str) -> None:
    now = datetime.fromisoformat(month).replace(tzinfo=ZoneInfo(zone)).timestamp()
    expected = tuple(datetime.fromisoformat(each).timestamp() for each in (start, end))

    assert period(now, "month", zone) == expected
    assert period(expected[1] - 0.001, "month", zone) == expected
    assert period(expected[1], "month", zone) != expected


def test_a_day_whose_midnight_is_skipped_begins_later() -> None:
    noon = datetime(2026, 4, 24, 12, tzinfo=ZoneInfo("Africa/Cairo"))
    start, end = period(noon.timestamp(), "day", "Africa/Cairo")

    assert datetime.fromtimestamp(start, noon.tzinfo).isoformat() == "2026-04-24T01:00:00+03:00"
    assert end - start == 23 * 3600


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"usd": 0, "per": "day"}, "greater than 0"),
        ({"usd": True, "per": "day"}, "not a boolean"),
        ({"usd": 1, "per": "year"}, "'day', 'week' or 'month'"),
        ({"usd": 1, "per": "day", "timezone": "Mars/Base"}, "IANA time zone database"),
        ({"per": "day"}, "Field required"),
    ],
)
def test_an_invalid_budget_is_refused(given: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Budget.model_validate(given)
