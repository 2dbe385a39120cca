"""What became of a stream, by what its client received."""

from dataclasses import replace

import pytest

from benchmarks.chaos.load import Received, stream

WHOLE = Received(
    10.0, 12.0, asked_tokens=3, status=200, pieces_s=(10.5, 11.0, 11.5), done=True, output_tokens=3
)


def test_every_token_and_done_is_whole() -> None:
    found = stream(WHOLE)
    assert (found.outcome, found.tokens, found.longest_pause_s) == ("whole", 3, 0.5)


def test_whole_after_a_pause_is_continued() -> None:
    found = stream(replace(WHOLE, pieces_s=(10.5, 11.6, 11.7)))
    assert found.outcome == "continued"
    assert found.longest_pause_s == pytest.approx(1.1)


def test_an_error_event_and_done_is_told() -> None:
    found = stream(replace(WHOLE, error_event="replica_lost: gone", output_tokens=None))
    assert (found.outcome, found.error) == ("told", "replica_lost: gone")


def test_an_error_event_without_done_is_cut() -> None:
    assert stream(replace(WHOLE, error_event="replica_lost", done=False)).outcome == "cut"


def test_an_end_without_done_is_cut() -> None:
    found = stream(replace(WHOLE, done=False, failure="ClientPayloadError"))
    assert (found.outcome, found.error) == ("cut", "ClientPayloadError")
    assert stream(replace(WHOLE, done=False)).error == "the stream ended without [DONE]"


@pytest.mark.parametrize("tokens", [2, 4, None])
def test_done_with_tokens_lost_or_repeated_is_no_whole_stream(tokens: int | None) -> None:
    found = stream(replace(WHOLE, output_tokens=tokens))
    assert (found.outcome, found.error) == ("cut", f"[DONE] after {tokens} of 3 tokens")


@pytest.mark.parametrize("status", [0, 429, 503])
def test_without_an_answer_begun_it_is_refused(status: int) -> None:
    found = stream(Received(1.0, 2.0, 3, status=status, failure="why"))
    assert (found.outcome, found.error) == ("refused", "why")


def test_given_up_it_hangs_or_was_merely_slow() -> None:
    given_up = replace(WHOLE, done=False, given_up=True)
    assert stream(replace(given_up, ended_s=16.0)).outcome == "open"
    assert stream(replace(given_up, ended_s=17.0)).outcome == "hung"
    assert stream(replace(given_up, pieces_s=(), status=0, ended_s=16.0)).outcome == "hung"


def test_a_pause_reaches_to_the_end_of_the_stream() -> None:
    told = replace(WHOLE, error_event="engine_died", ended_s=18.5)
    assert stream(told).longest_pause_s == 7.0
