"""HPA with KEDA, and AIBrix's APA, by hand."""

from benchmarks.peers.hpa import AibrixApa, HpaKeda
from tests.benchmarks.peers.build import drive, sample


def test_hpa_bounds_steps_up_and_delays_steps_down() -> None:
    policy = HpaKeda("ongoing", 10)
    # 100 requests are 10 replicas. From 2: max(2 * 2, 2 + 4) = 6; 15 s later max(12, 10) allows all 10.
    assert drive(policy, 30.0, 100, target=2) == [(0.0, 6), (15.0, 10)]
    # 20 requests are 2. The wish for 10 of 15 s is out of the 300 s at 315 s.
    assert drive(policy, 300.0, 20, target=10, begin=30.0) == [(315.0, 2)]


def test_hpa_tolerates_a_tenth_around_the_target() -> None:
    assert drive(HpaKeda("ongoing", 10), 15.0, 109, target=10) == []  # 1.09
    assert drive(HpaKeda("ongoing", 10), 15.0, 111, target=10) == [(0.0, 12)]  # 1.11


def test_waiting_requests_count_in_engines_and_ingress() -> None:
    policy = HpaKeda("waiting", 1)
    # 3 + 2 over 2 replicas: 2.5 a replica, so 5; what runs does not count.
    assert policy.decide(sample(0.0, running=[40, 40], waiting=[3, 2])) == 5
    assert HpaKeda("waiting", 1).decide(sample(0.0, target=3, held=6)) == 6


def test_keda_ends_and_wakes_the_last_replica() -> None:
    policy = HpaKeda("ongoing", 10)
    assert drive(policy, 75.0, 5, target=1) == []  # polls at 0, 30 and 60 s find it active
    # Idle from 75 s on; the first poll 300 s after 60 s is at 360 s. Until then HPA keeps its one.
    assert drive(policy, 300.0, 0, target=1, begin=75.0) == [(360.0, 0)]
    # Held from 375 s on; the poll is at 390 s. HPA takes over from one.
    assert drive(policy, 30.0, 50, target=0, begin=375.0) == [(390.0, 1)]


def test_request_between_two_polls_counts_as_activity() -> None:
    policy = HpaKeda("waiting", 1)
    decided = [policy.decide(sample(15.0 * n, running=[0.0], arrivals=1 + n // 10)) for n in range(100)]
    assert set(decided) == {1}


def test_apa_doubles_at_once() -> None:
    # 20 requests on 1 pod are 4 times its target of 5: 2 pods. Then 10 a pod, twice: 4. Then 5: enough.
    assert drive(AibrixApa(5), 60.0, 20, target=1) == [(0.0, 2), (10.0, 4)]


def test_apa_goes_down_to_the_highest_recent_recommendation() -> None:
    policy = AibrixApa(5)
    assert drive(policy, 10.0, 20, target=4) == []  # load 1: 4 pods recommended at 0 s
    # 8 requests from 10 s on. The mean at 10 k s is (20 + 8 k) / (k + 1), and the recommendation a fifth of
    # it, rounded up: 3 to 40 s, then 2. The 4 of 0 s is forgotten at 300 s, the last 3 at 340 s.
    assert drive(policy, 400.0, 8, target=4, begin=10.0) == [(300.0, 3), (340.0, 2)]


def test_apa_tolerates_a_tenth_around_the_target() -> None:
    assert drive(AibrixApa(5), 10.0, 21.9, target=4) == []  # 1.095
    assert drive(AibrixApa(5), 10.0, 18.1, target=4) == []  # 0.905


def test_apa_counts_starting_pods_against_every_change() -> None:
    # 2 of 4 ready with 10 requests each: load 2, so 8; but over 4 it is 20 / 5 = 4.
    assert AibrixApa(5).decide(sample(running=[10, 10], target=4)) == 4
    # 2 of 4 ready with 1 each: load 0.2, so half of 4; with 2 as if used it is ceil(0.4 + 2) = 3.
    assert AibrixApa(5).decide(sample(running=[1, 1], target=4)) == 3


def test_apa_keeps_at_least_one_pod() -> None:
    policy = AibrixApa(5)
    assert policy.decide(sample(0.0)) == 1
    assert policy.decide(sample(10.0, target=3, held=9)) == 3
    assert drive(policy, 900.0, 0, target=1, begin=20.0) == []
