import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from serve_app.learning.daily import BUCKET_S, DailyDemand, Merit

DAY_S = 86_400.0
MIDNIGHT = 19_676 * DAY_S


def office(at_s: float) -> float:
    """Requests per second of a day that rises from six to ten o'clock and falls from 18 to 22."""
    hour = at_s % DAY_S / 3600.0
    return 2.0 + 5.0 * min(max(hour - 6.0, 0.0), 4.0, max(22.0 - hour, 0.0))


def lived(
    days: float, level: float = 1.0, memory: DailyDemand | None = None, start_s: float = 0.0
) -> DailyDemand:
    memory = memory or DailyDemand()
    for step in range(int(days * DAY_S / 300.0)):
        at_s = start_s + 300.0 * step
        memory = memory.note(MIDNIGHT + at_s, level * office(at_s))
    return memory


def test_on_the_first_day_nothing_is_expected() -> None:
    assert lived(0.99).expected(MIDNIGHT + 0.99 * DAY_S, 900.0) is None


def test_a_morning_like_yesterdays_is_expected_before_it_comes() -> None:
    at_s = DAY_S + 8 * 3600.0
    told = lived(at_s / DAY_S).expected(MIDNIGHT + at_s - 1.0, 1200.0)

    assert told is not None
    assert told.source == "yesterday"
    assert 0.3 < told.trust <= 1.0
    assert told.rps == pytest.approx(office(at_s + 1199.0), rel=0.1)
    assert told.rps > 1.05 * office(at_s)


def test_a_day_that_is_half_as_busy_is_expected_to_stay_so() -> None:
    weekday = lived(2.0)
    at_s = 2 * DAY_S + 8 * 3600.0
    told = lived(1 / 3, 0.5, weekday, 2 * DAY_S).expected(MIDNIGHT + at_s - 1.0, 1200.0)

    assert told is not None
    assert told.rps == pytest.approx(0.5 * office(at_s + 1199.0), rel=0.1)


def test_the_same_day_a_week_ago_is_used_where_it_is_better_than_yesterday() -> None:
    memory = DailyDemand()
    at_s = 9 * DAY_S + 8 * 3600.0
    for step in range(int(at_s / 300.0)):
        now_s = 300.0 * step
        late_s = (0.0, 6.0, 3.0, 5.0, 1.0, 4.0, 2.0)[int(now_s // DAY_S) % 7] * 3600.0
        memory = memory.note(MIDNIGHT + now_s, office(now_s - late_s))

    told = memory.expected(MIDNIGHT + at_s - 1.0, 900.0)
    assert told is not None
    assert told.source == "a week ago"


def test_where_days_have_nothing_in_common_it_is_not_trusted() -> None:
    memory = DailyDemand()
    for step in range(int(5 * DAY_S / 600.0)):
        at_s = 600.0 * step
        # A ramp at another hour of every day: what comes back is that nothing does.
        memory = memory.note(MIDNIGHT + at_s, office(at_s + 17.0 * 3600.0 * (at_s // DAY_S) ** 2))

    assert memory.yesterday.gain < 0
    assert memory.expected(MIDNIGHT + 5 * DAY_S - 1.0, 900.0) is None


def test_flat_traffic_is_expected_as_it_is() -> None:
    memory = DailyDemand()
    for step in range(int(2 * DAY_S / 600.0)):
        memory = memory.note(MIDNIGHT + 600.0 * step, 7.0)

    assert memory.yesterday == Merit()
    assert memory.expected(MIDNIGHT + 2 * DAY_S - 1.0, 900.0) is None


def test_hours_that_nobody_observed_are_neither_zero_nor_judged() -> None:
    before = lived(1.25)
    away = before.note(MIDNIGHT + 1.5 * DAY_S, 20.0)

    assert away.closed[-35:] == (None,) * 35
    assert away.yesterday.error < before.yesterday.error + 2.0
    assert lived(0.75, memory=away, start_s=1.5 * DAY_S).expected(MIDNIGHT + 2.25 * DAY_S, 75.0) is not None


def test_a_clock_that_is_set_back_takes_back_what_lies_ahead() -> None:
    memory = lived(1.5)
    back = memory.note(MIDNIGHT + 1.25 * DAY_S, 3.0)

    assert back.closed == memory.closed[: len(back.closed)]
    assert back.start == MIDNIGHT + 1.25 * DAY_S
    assert back.expected(MIDNIGHT + 3 * DAY_S, 75.0) is None


def test_it_comes_back_from_plain_data_as_it_was() -> None:
    memory = lived(9.0)
    plain = json.loads(json.dumps(asdict(memory)))

    assert TypeAdapter(DailyDemand).validate_python(plain) == memory
    assert len(memory.closed) == 8 * DAY_S / BUCKET_S


@settings(max_examples=30)
@given(
    seen=st.lists(st.tuples(st.floats(-2 * DAY_S, 3 * DAY_S), st.floats(0.0, 1e6)), max_size=200),
    horizon_s=st.floats(0.0, 900.0),
)
def test_whatever_it_sees_what_it_expects_is_a_demand(
    seen: list[tuple[float, float]], horizon_s: float
) -> None:
    memory, now = DailyDemand(), MIDNIGHT
    for step_s, rps in seen:
        now += step_s
        memory = memory.note(now, rps)
        told = memory.expected(now, horizon_s)
        assert told is None or (math.isfinite(told.rps) and told.rps >= 0 and 0 < told.trust <= 1)
