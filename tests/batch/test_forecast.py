import math

from serve_app.batch.forecast import Rate, Remaining, late_s


def test_the_batch_with_the_earliest_end_goes_first() -> None:
    batches = [Remaining("long", 100, 1000.0), Remaining("short", 50, 40.0)]

    assert late_s(batches, 1.0, 0.0) == {"short": 10.0}
    assert late_s(batches, 0.1, 0.0) == {"short": 460.0, "long": 500.0}
    assert late_s(batches, 2.0, 0.0) == {}


def test_without_any_answer_every_batch_is_late_without_bound() -> None:
    assert late_s([Remaining("a", 1, 1000.0)], 0.0, 0.0) == {"a": math.inf}


def test_before_the_rate_is_known_no_batch_is_late() -> None:
    assert late_s([Remaining("a", 1, 1000.0)], None, 0.0) == {}


def test_a_batch_without_lines_left_is_not_late() -> None:
    assert late_s([Remaining("a", 0, 1.0)], 1.0, 100.0) == {}


def test_the_rate_is_known_after_twenty_seconds() -> None:
    rate = Rate()
    for second in range(20):
        rate.note(3, float(second))
    assert rate.lines_per_s is None

    rate.note(3, 20.0)

    assert rate.lines_per_s == 3.0


def test_the_rate_forgets_after_five_minutes() -> None:
    rate = Rate()
    for second in range(1000):
        rate.note(10 if second < 500 else 1, float(second))

    assert rate.lines_per_s == 1.0
