from typing import Any

import numpy as np
import pytest

from replay.defaults import GOAL
from replay.result import Result
from replay.run import replay
from tests.replay.traffic import of, two_bursts
from traces import ArrayTrace


def oracle(trace: ArrayTrace, **options: Any) -> Result:
    return replay(trace, policy="oracle", **options)


def test_oracle_keeps_replicas_through_short_silences_only() -> None:
    long, short = oracle(two_bursts(300.0)), oracle(two_bursts(60.0))

    for result in (long, short):
        assert result.policy == "oracle"
        assert result.attainment >= GOAL
    # Idle through a minute is cheaper than a cold start of 75 s, and through five minutes it is not.
    assert short.gpu_seconds.idle > 60.0
    assert long.gpu_seconds.idle < 60.0
    assert long.starts > short.starts


def test_it_costs_less_than_a_static_fleet_chosen_with_hindsight() -> None:
    assert (
        oracle(two_bursts(300.0)).gpu_seconds.total
        < replay(two_bursts(300.0), policy="static").gpu_seconds.total
    )


def test_oracle_pays_for_extra_replicas_at_the_start() -> None:
    free, paid = oracle(two_bursts(60.0), initial=3), oracle(two_bursts(60.0), initial=0)

    assert free.gpu_seconds.warming == 0.0
    assert paid.gpu_seconds.warming == pytest.approx(paid.starts * 75.0)
    assert paid.starts >= 3


def test_short_cold_starts_are_followed_closely() -> None:
    quick, slow = oracle(two_bursts(60.0), cold_start_s=(2.0, 4.0)), oracle(two_bursts(60.0))

    assert quick.gpu_seconds.total < 0.6 * slow.gpu_seconds.total
    assert quick.attainment >= GOAL


def test_oracle_lets_a_lone_request_wait_for_the_next_replica() -> None:
    busy = np.arange(600.0, 700.0, 0.25)
    result = oracle(of(np.concatenate([[0.0], busy]), "one early"), initial=0)

    assert GOAL <= result.attainment < 1.0
    assert result.starts == 1
    assert result.gpu_seconds.total < 200.0


def test_minutes_that_no_fleet_attains_are_not_chased() -> None:
    # 5,000 tokens take 250 ms by themselves.
    at = np.arange(0.0, 180.0, 0.5)
    trace = ArrayTrace("long prompts", at, np.full(len(at), 5000), np.full(len(at), 20))

    result = oracle(trace)

    assert result.attainment == 0.0
    assert result.infeasible == 1.0
    assert result.peak <= 3
