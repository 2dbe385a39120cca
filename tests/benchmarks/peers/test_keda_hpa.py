"""HPA with KEDA, by hand."""

from benchmarks.peers.keda_hpa import HpaKeda
from tests.benchmarks.peers.build import drive, sample


def test_up_by_four_or_to_the_double_and_down_to_the_highest_of_five_minutes() -> None:
    law = HpaKeda("ongoing", 10)
    # 100 requests are 10 replicas. From 2: max(2 * 2, 2 + 4) = 6; 15 s later max(12, 10) allows all 10.
    assert drive(law, 30.0, 100, target=2) == [(0.0, 6), (15.0, 10)]
    # 20 requests are 2. The wish for 10 of 15 s is out of the 300 s at 315 s.
    assert drive(law, 300.0, 20, target=10, begin=30.0) == [(315.0, 2)]


def test_within_a_tenth_of_the_target_nothing_changes() -> None:
    assert drive(HpaKeda("ongoing", 10), 15.0, 109, target=10) == []  # 1.09
    assert drive(HpaKeda("ongoing", 10), 15.0, 111, target=10) == [(0.0, 12)]  # 1.11


def test_waiting_requests_count_in_engines_and_ingress() -> None:
    law = HpaKeda("waiting", 1)
    # 3 + 2 over 2 replicas: 2.5 a replica, so 5; what runs does not count.
    assert law.decide(sample(0.0, running=[40, 40], waiting=[3, 2])) == 5
    assert HpaKeda("waiting", 1).decide(sample(0.0, target=3, held=6)) == 6


def test_keda_ends_and_wakes_the_last_replica() -> None:
    law = HpaKeda("ongoing", 10)
    assert drive(law, 75.0, 5, target=1) == []  # polls at 0, 30 and 60 s find it active
    # Idle from 75 s on; the first poll 300 s after 60 s is at 360 s. Until then HPA keeps its one.
    assert drive(law, 300.0, 0, target=1, begin=75.0) == [(360.0, 0)]
    # Held from 375 s on; the poll is at 390 s. HPA takes over from one.
    assert drive(law, 30.0, 50, target=0, begin=375.0) == [(390.0, 1)]


def test_a_request_between_two_polls_counts_as_activity() -> None:
    law = HpaKeda("waiting", 1)
    decided = [law.decide(sample(15.0 * n, running=[0.0], arrivals=1 + n // 10)) for n in range(100)]
    assert set(decided) == {1}


def test_names_carry_metric_and_target() -> None:
    assert HpaKeda("waiting", 1).name == "hpa:waiting=1"
    assert HpaKeda("ongoing", 2.5).name == "hpa:ongoing=2.5"
