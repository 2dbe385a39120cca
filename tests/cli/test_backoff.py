from __future__ import annotations

from serve_app.cli.backoff import ATTEMPTS, STABLE_S, Backoff


def test_each_end_doubles_the_delay_up_to_a_minute() -> None:
    backoff = Backoff()

    assert [backoff.after(10.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_server_that_was_ready_for_long_begins_anew() -> None:
    backoff = Backoff()
    assert [backoff.after(10.0) for _ in range(3)] == [1, 2, 4]

    assert backoff.after(STABLE_S) == 1
    assert backoff.after(10.0) == 2


def test_a_first_start_that_was_never_ready_is_not_repeated() -> None:
    assert Backoff().after(None) is None


def test_once_it_has_served_some_starts_may_fail_in_a_row_and_no_more() -> None:
    backoff = Backoff()
    assert backoff.after(10.0) == 1

    delays = [backoff.after(None) for _ in range(ATTEMPTS)]

    assert delays == [2, 4, 8, 16, None]


def test_a_start_that_succeeds_between_them_is_counted_from() -> None:
    backoff = Backoff()
    backoff.after(10.0)
    for _ in range(ATTEMPTS - 1):
        assert backoff.after(None) is not None
    assert backoff.after(1.0) is not None

    assert all(backoff.after(None) is not None for _ in range(ATTEMPTS - 1))
