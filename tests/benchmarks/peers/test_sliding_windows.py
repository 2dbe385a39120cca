"""Sliding windows."""

from benchmarks.peers.sliding_windows import Buckets, Highest, Mean


def test_a_window_that_just_began_is_averaged_over_the_seconds_there_are() -> None:
    buckets = Buckets(60)
    assert buckets.empty(0.0)
    assert buckets.mean(0.0) == 0.0
    buckets.record(100.0, 24.0)
    assert buckets.mean(100.0) == 24.0
    buckets.record(101.0, 12.0)
    assert buckets.mean(101.5) == 18.0


def test_a_full_window_lets_go_of_the_oldest_and_counts_gaps_as_nothing() -> None:
    buckets = Buckets(4)
    for second, value in enumerate((8.0, 8.0, 4.0, 4.0, 4.0)):
        buckets.record(second, value)
    assert buckets.mean(4.0) == 5.0  # (8 + 4 + 4 + 4) / 4

    buckets.record(7.0, 12.0)  # nothing at 5 and 6; 4 and 7 are left
    assert buckets.mean(7.0) == 4.0


def test_without_recent_values_the_seconds_that_had_some_are_averaged() -> None:
    buckets = Buckets(4)
    for second in range(4):
        buckets.record(second, second + 1.0)
    assert buckets.mean(5.0) == 3.5  # 1 and 2 have left: (3 + 4) / 2
    assert buckets.mean(7.0) == 0.0
    assert not buckets.empty(7.0)
    assert buckets.empty(8.0)


def test_a_whole_window_of_silence_begins_anew() -> None:
    buckets = Buckets(4)
    buckets.record(0.0, 9.0)
    buckets.record(4.0, 2.0)
    assert buckets.mean(4.0) == 2.0


def test_the_mean_is_of_its_window() -> None:
    mean = Mean(180.0)
    assert [mean.add(at, value) for at, value in ((0.0, 4.0), (90.0, 8.0), (180.0, 2.0))] == [4.0, 6.0, 5.0]


def test_the_highest_is_forgotten_when_its_time_is_over() -> None:
    highest = Highest(300.0)
    assert [highest.add(at, value) for at, value in ((0.0, 3), (10.0, 7), (20.0, 2))] == [3, 7, 7]
    assert highest.add(309.9, 1) == 7
    assert highest.add(310.0, 1) == 2
    assert highest.add(330.0, 1) == 1
