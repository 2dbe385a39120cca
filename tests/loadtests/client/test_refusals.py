from __future__ import annotations

import pytest

from loadtests.client.refusals import LONGEST_WAIT_S, wait_s


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("86400", LONGEST_WAIT_S),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
    ],
)
def test_the_server_says_when(told: str, seconds: float) -> None:
    assert wait_s(told, 1, "a", 40.0) == seconds


@pytest.mark.parametrize(
    "told", [None, "soon", "nan", "inf", "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"]
)
def test_without_a_word_it_doubles_up_to_eight_seconds(told: str | None) -> None:
    for attempt, most in [(1, 0.5), (2, 1.0), (3, 2.0), (5, 8.0), (6, 8.0), (2000, 8.0)]:
        assert 0.75 * most <= wait_s(told, attempt, "a", 0.0) <= most


def test_requests_refused_together_do_not_come_back_together() -> None:
    waits = {wait_s(None, 1, f"1/{index}", 0.0) for index in range(100)}
    assert len(waits) == 100
    assert wait_s(None, 1, "1/5", 0.0) == wait_s(None, 1, "1/5", 9.0)
