import math

from serve_app.runner.open_batch import Rate, late_s


def test_a_batch_waits_for_those_that_end_earlier() -> None:
    due = [(50, 40.0), (100, 1000.0)]

    assert late_s(due, 1.0, 0.0) == [10.0]
    assert late_s(due, 0.1, 0.0) == [460.0, 500.0]
    assert late_s(due, 2.0, 0.0) == []


def test_without_any_answer_every_batch_is_late_without_bound() -> None:
    assert late_s([(1, 1000.0)], 0.0, 0.0) == [math.inf]


def test_before_the_rate_is_known_no_batch_is_late() -> None:
    assert late_s([(1, 1000.0)], None, 0.0) == []


def test_a_batch_without_lines_left_is_not_late() -> None:
    assert late_s([(0, 1.0)], 1.0, 100.0) == []


def note(rate: Rate, lines: int, second: int) -> None:
    rate.add(lines)
    rate.note(float(second))


def test_the_rate_is_known_after_twenty_seconds() -> None:
    rate = Rate()
    for second in range(20):
        note(rate, 3, second)
    assert rate.lines_per_s is None

    note(rate, 3, 20)

    assert rate.lines_per_s == 3.0


def test_the_rate_forgets_after_five_minutes() -> None:
    rate = Rate()
    for second in range(1000):
        note(rate, 10 if second < 500 else 1, second)

    assert rate.lines_per_s == 1.0
