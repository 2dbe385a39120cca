"""Knative's KPA, by hand. A target of 5 requests is T = 3.5 a replica."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.knative_kpa import Buckets, KnativeKpa
from tests.benchmarks.peers.build import drive, sample


def test_panic_scales_up_at_once_and_never_down() -> None:
    policy = KnativeKpa(5)
    # ceil(28 / 3.5) = 8, at once: a window that just began is averaged over what there is. 8 / 1 >= 2: panic.
    assert drive(policy, 10.0, 28, target=1) == [(0.0, 8)]
    # 3 requests from 10 s on. The panic ends at the first tick past 0 + 60 s, 62. The stable window is then
    # 3..62: (7 * 28 + 53 * 3) / 60 = 5.92, so 2 replicas, but half of 8 at most go: 4. Two seconds later 2.
    # At 68 s one second of 28 is left, 9..68: (28 + 59 * 3) / 60 = 3.42, so 1.
    assert drive(policy, 80.0, 3, target=8, begin=10.0) == [(62.0, 4), (64.0, 2), (68.0, 1)]


def test_idle_revision_goes_to_zero_after_window_and_grace() -> None:
    # Ready since 0 s, so it may be marked inactive at 60 s; 30 s of grace.
    assert drive(KnativeKpa(5), 150.0, 0, target=1) == [(90.0, 0)]


def test_request_in_the_grace_period_keeps_the_replica() -> None:
    policy = KnativeKpa(5)
    assert drive(policy, 80.0, 0, target=1) == []
    # At 80 s 3 requests: the mean of the stable window is 3/60, and above zero. It is idle again 60 s after
    # the last of them, and inactive at 82 + 60 = 142 s: 172 s.
    assert drive(policy, 2.0, 3, target=1, begin=80.0) == []
    assert drive(policy, 120.0, 0, target=1, begin=82.0) == [(172.0, 0)]


def test_activator_wakes_the_policy_between_ticks() -> None:
    policy = KnativeKpa(5)
    assert [policy.decide(sample(at)) for at in range(7)] == [0] * 7
    assert policy.decide(sample(7.0, held=24)) == 7  # ceil(24 / 3.5)


def test_starting_replicas_without_metrics_are_kept() -> None:
    policy = KnativeKpa(5)
    asked = policy.decide(sample(0.0, held=24))
    assert {policy.decide(sample(at, target=asked)) for at in range(1, 200)} == {7}


def test_initial_fleet_is_kept_until_the_windows_are_full() -> None:
    assert drive(KnativeKpa(5), 62.0, 3, target=6) == []


def test_target_defaults_to_knatives() -> None:
    assert (KnativeKpa().name, KnativeKpa(5).name) == ("kpa", "kpa:5")
    # 70 % of 100: 100 requests are 2 replicas.
    assert drive(KnativeKpa(), 10.0, 100, target=1) == [(0.0, 2)]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=30))
def test_buckets_average_the_seconds_of_their_window(steps: list[tuple[int, int]]) -> None:
    buckets, at = Buckets(4), 0
    seen: list[tuple[int, int]] = []
    for gap, value in steps:
        at += gap
        # Four seconds of silence begin anew; a shorter silence counts as zeros.
        seen = [*(seen if gap < 4 else ()), (at, value)]
        buckets.record(at, value)

        seconds = min(at - seen[0][0] + 1, 4)
        expected = sum(value for second, value in seen if second > at - 4) / seconds
        assert buckets.mean(at) == pytest.approx(expected, abs=1e-6)
    assert buckets.mean(at + 4) == 0.0
    assert not buckets.empty(at + 4)
    assert buckets.empty(at + 5)
