import pytest

from serve_app.learning.feedback import Latency, Measured
from serve_app.learning.headroom import learn_headroom
from serve_app.learning.state import Minute, PolicyState
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES, Knobs
from tests.policy.build import NOW

KNOBS = Knobs(ttft_percentile=95)


def measured(late_requests: float, late_tokens: float, count: float = 100.0) -> Measured:
    """So many requests and tokens in the last 30 s, and the shares of them that were late."""
    times, itl = (Latency(of, (), count) for of in (PERCENTILES, ITL_PERCENTILES))
    return Measured(times, times, itl, late_requests, late_tokens, ttft_feasible=True)


FINE, LATE_REQUESTS, LATE_TOKENS = measured(0.04, 0.04), measured(0.06, 0.0), measured(0.0, 0.06)


def with_headroom(
    seen: Measured,
    seconds: int,
    *,
    ready: int = 4,
    load: float = 4.0,
    start_s: float = 60.0,
    knobs: Knobs = KNOBS,
    headroom: float = 0.0,
) -> float:
    """The headroom after so many seconds of these latencies, from the beginning of a minute."""
    state = PolicyState(last_at=NOW - 1, minute=Minute(NOW - 1, ready), learned_headroom=headroom)
    for second in range(seconds):
        state = learn_headroom(state, seen, knobs, ready, load, start_s, NOW + second)
        state = PolicyState(
            last_at=NOW + second, minute=state.minute, learned_headroom=state.learned_headroom
        )
    return state.learned_headroom


@pytest.mark.parametrize("late", [LATE_REQUESTS, LATE_TOKENS])
def test_a_minute_that_misses_its_targets_adds_headroom_at_its_end(late: Measured) -> None:
    assert with_headroom(late, 59) == 0.0
    assert with_headroom(late, 60) == with_headroom(late, 119) == pytest.approx(0.35 * 0.99)
    assert with_headroom(late, 3600) == 2.0


@pytest.mark.parametrize(("slo_attainment", "minutes"), [(0.99, 99), (0.9, 9)])
def test_it_takes_as_many_minutes_within_their_targets_to_take_it_away_as_are_promised(
    slo_attainment: float, minutes: int
) -> None:
    knobs = KNOBS.model_copy(update={"slo_attainment": slo_attainment})
    step = 0.35 * slo_attainment
    assert with_headroom(LATE_TOKENS, 60, knobs=knobs) == pytest.approx(step)
    for seconds, left in ((60 * minutes, 0.0), (30 * minutes, step / 2), (7200, 0.0)):
        after = with_headroom(FINE, seconds, knobs=knobs, headroom=step)
        assert after == pytest.approx(left, abs=step / minutes)


def test_the_minutes_that_one_long_start_misses_are_one_error() -> None:
    assert with_headroom(LATE_TOKENS, 180, start_s=180.0) == pytest.approx(with_headroom(LATE_TOKENS, 60))


def test_minutes_with_a_handful_of_requests_move_it_neither_way() -> None:
    few = measured(0.5, 0.5, count=9.0)
    assert with_headroom(few, 120, headroom=0.3) == 0.3


def test_a_miss_that_no_headroom_would_have_prevented_teaches_nothing() -> None:
    # Four replicas with the most headroom there may be carry the load of eight.
    assert with_headroom(LATE_TOKENS, 60, load=8.0) > 0.0
    assert with_headroom(LATE_TOKENS, 60, load=8.1) == 0.0
    assert with_headroom(LATE_TOKENS, 60, ready=0, load=0.1) == 0.0


@pytest.mark.parametrize(("start_s", "learns"), [(3.0, True), (75.0, False)])
def test_replicas_count_that_came_in_time_had_they_been_asked_for_at_the_begin_of_the_minute(
    start_s: float, learns: bool
) -> None:
    """One replica at the begin, twelve for the rest: a burst that only fast starts could have met."""
    state = PolicyState(last_at=NOW - 1, minute=Minute(NOW - 1, 1))
    for second in range(60):
        state = learn_headroom(state, LATE_TOKENS, KNOBS, 12, 10.0, start_s, NOW + second)
        state = PolicyState(
            last_at=NOW + second, minute=state.minute, learned_headroom=state.learned_headroom
        )

    assert (state.learned_headroom > 0.0) == learns
