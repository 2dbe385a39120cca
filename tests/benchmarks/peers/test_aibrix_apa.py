"""AIBrix's APA, by hand."""

from benchmarks.peers.aibrix_apa import AibrixApa
from tests.benchmarks.peers.build import drive, sample


def test_up_to_the_double_at_once() -> None:
    # 20 requests on 1 pod are 4 times its target of 5: 2 pods. Then 10 a pod, twice: 4. Then 5: enough.
    assert drive(AibrixApa(5), 60.0, 20, target=1) == [(0.0, 2), (10.0, 4)]


def test_down_to_the_highest_recommendation_of_five_minutes() -> None:
    law = AibrixApa(5)
    assert drive(law, 10.0, 20, target=4) == []  # load 1: 4 pods recommended at 0 s
    # 8 requests from 10 s on. The mean at 10 k s is (20 + 8 k) / (k + 1), and the recommendation a fifth of
    # it, rounded up: 3 to 40 s, then 2. The 4 of 0 s is forgotten at 300 s, the last 3 at 340 s.
    assert drive(law, 400.0, 8, target=4, begin=10.0) == [(300.0, 3), (340.0, 2)]


def test_within_a_tenth_nothing_changes() -> None:
    assert drive(AibrixApa(5), 10.0, 21.9, target=4) == []  # 1.095
    assert drive(AibrixApa(5), 10.0, 18.1, target=4) == []  # 0.905


def test_pods_that_start_count_as_idle_on_the_way_up_and_as_used_on_the_way_down() -> None:
    # 2 of 4 ready with 10 requests each: load 2, so 8; but over 4 it is 20 / 5 = 4.
    assert AibrixApa(5).decide(sample(running=[10, 10], target=4)) == 4
    # 2 of 4 ready with 1 each: load 0.2, so half of 4; with 2 as if used it is ceil(0.4 + 2) = 3.
    assert AibrixApa(5).decide(sample(running=[1, 1], target=4)) == 3


def test_it_keeps_one_and_without_pods_what_it_has() -> None:
    law = AibrixApa(5)
    assert law.decide(sample(0.0)) == 1
    assert law.decide(sample(10.0, target=3, held=9)) == 3
    assert drive(law, 900.0, 0, target=1, begin=20.0) == []


def test_the_name_carries_the_target() -> None:
    assert AibrixApa(5).name == "apa:5"
