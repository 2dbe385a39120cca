import numpy as np
import pytest

from benchmarks.days.evaluate import BUCKET_S, demand, outcomes
from traces import ArrayTrace
from traces.days import DAY_S


def test_demand_is_the_rate_of_the_last_minute() -> None:
    trace = ArrayTrace("calls", np.arange(0.0, 300.0, 0.5), [1] * 600, [1] * 600)
    rates = demand(trace, 600.0)

    assert len(rates) == 600 / BUCKET_S
    assert rates[20] == rates[59] == 2.0
    assert rates[65] == pytest.approx(1.0)
    assert rates[-1] == 0.0


def test_a_day_that_comes_back_is_expected_and_a_rise_exceeds_what_knows_no_time_of_day() -> None:
    at_s = np.arange(0.0, 3 * DAY_S, BUCKET_S)
    rates = 10.0 + 8.0 * np.sin(2 * np.pi * at_s / DAY_S)

    now, daily, lately, both, as_much = outcomes(rates, 900.0, int(DAY_S / BUCKET_S))

    assert now.exceeded == pytest.approx(0.5, abs=0.02)
    assert daily.missing < 0.5 * now.missing
    assert both.missing <= min(daily.missing, lately.missing)
    assert as_much.spare == pytest.approx(both.spare, abs=0.02)
