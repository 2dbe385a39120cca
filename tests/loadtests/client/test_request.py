"""One request, from its first attempt to its record."""

import asyncio
import dataclasses
from typing import Any

import pytest

from loadtests.client.request import LONGEST_WAIT_S, wait_s
from loadtests.plan import Planned
from loadtests.record import Record
from loadtests.scenario import Client
from tests.loadtests.client.driving import Driven, Scripted, Stub, driven, planned, target


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


TIMEOUT_S = 8.0
"""A busy machine stood still for 2 s."""
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole": ({}, {}),
    "chat": ({"api": "chat", "prompt_tokens": 30, "prefix_tokens": 12}, {}),
    "left after tokens": ({"output_tokens": 500, "leave_after_tokens": 3}, {"itl_s": 0.02}),
    "left after seconds": ({"leave_after_s": 6.0}, {"ttft_s": 30.0}),
    "left within": ({"output_tokens": 500, "leave_after_s": 6.0}, {"itl_s": 0.02}),
    "left late": ({"leave_after_s": 7.9, "leave_after_tokens": None}, {}),
    "too slow": ({"output_tokens": 500}, {"itl_s": 0.1}),
    "stalled": ({}, {"fail": "stall"}),
    "refused once": ({}, {"fail": "429", "fail_times": 1, "retry_after_s": 0}),
    "refused always": ({}, {"fail": "503", "retry_after_s": 0}),
    "refused for long": ({}, {"fail": "429", "retry_after_s": 60}),
    "error at once": ({}, {"fail": "error_frame", "comments_s": 0.1, "comment_every_s": 0.05}),
    "error within": ({}, {"fail": "error_frame", "fail_after_tokens": 2}),
    "cut at once": ({}, {"fail": "cut", "comments_s": 0.1, "comment_every_s": 0.05}),
    "cut before its status": ({}, {"fail": "cut"}),
    "cut within": ({}, {"fail": "cut", "fail_after_tokens": 2}),
    "held": ({}, {"comments_s": 0.3, "comment_every_s": 0.1}),
    "malformed": ({}, {"unknown": 1}),
    "large": ({"prompt_tokens": 60_000}, {}),
}
INDEX = {name: number for number, name in enumerate(CASES)}


@dataclasses.dataclass(frozen=True)
class Asked:
    run: Driven
    plan: dict[str, Planned]
    prompts: Scripted
    stub: Stub

    def record(self, name: str) -> Record:
        return self.run.records[INDEX[name]]

    def served(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        return self.stub.served(self.prompts.text(self.plan[name]), count)


@pytest.fixture(scope="module")
def asked(stub: Stub) -> Asked:
    where = target(stub.url, seed=400)
    script = {"ttft_s": 0.02, "itl_s": 0.005}
    prompts = Scripted(where, {INDEX[name]: script | how for name, (_, how) in CASES.items()})
    plan = {name: planned(INDEX[name], 0.005 * INDEX[name], **given) for name, (given, _) in CASES.items()}
    settings = Client(timeout_s=TIMEOUT_S, retries=2)
    return Asked(driven(list(plan.values()), where, settings, prompts=prompts), plan, prompts, stub)


@pytest.mark.parametrize("name", ["whole", "chat", "left late", "large"])
def test_a_whole_answer(asked: Asked, name: str) -> None:
    record, one = asked.record(name), asked.plan[name]
    assert (record.outcome, record.status, record.attempts, record.error) == ("answered", 200, 1, "")
    assert record.at_s == one.at_s
    assert record.lag_s >= 0
    assert record.sent_s < record.pieces_s[0]
    assert list(record.pieces_s) == sorted(record.pieces_s)
    assert record.pieces_s[-1] <= record.ended_s
    assert len(record.pieces_s) == record.output_tokens == record.planned_output_tokens == 4
    assert record.model == "tide"
    assert (record.cold_wait_s, record.phases) == (0.0, ())


def test_a_client_that_leaves_after_tokens_closes_the_connection(asked: Asked) -> None:
    record = asked.record("left after tokens")
    assert (record.outcome, record.error) == ("left", "")
    assert 3 <= len(record.pieces_s) < 500
    assert asked.served("left after tokens")[0]["outcome"] == "cancelled"


def test_a_client_leaves_before_the_first_token(asked: Asked) -> None:
    record = asked.record("left after seconds")
    assert (record.outcome, record.pieces_s, record.status) == ("left", (), 0)
    assert record.ended_s >= record.at_s + 5.99
    assert asked.served("left after seconds")[0]["outcome"] == "cancelled"


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("too slow", "pieces had come"),
        ("stalled", "no answer had begun"),
        ("refused for long", "the last attempt was refused with 429"),
    ],
)
def test_an_answer_past_its_timeout_is_abandoned(asked: Asked, name: str, state: str) -> None:
    record = asked.record(name)
    assert record.outcome == "abandoned"
    assert record.error.startswith("not whole 8 s after its intended time: ")
    assert record.error.endswith(state)
    assert record.ended_s >= record.at_s + TIMEOUT_S - 0.01
    noted = {"too slow": "cancelled", "stalled": "stall", "refused for long": "429"}  # A stall ends at once.
    assert asked.served(name)[0]["outcome"] == noted[name]


def test_a_refused_request_is_sent_again(asked: Asked) -> None:
    record = asked.record("refused once")
    assert (record.outcome, record.status, record.attempts) == ("answered", 200, 2)
    assert [row["status"] for row in asked.served("refused once", 2)] == [429, 200]


def test_a_request_refused_after_all_retries_is_rejected(asked: Asked) -> None:
    record = asked.record("refused always")
    assert (record.outcome, record.status, record.attempts) == ("rejected", 503, 3)
    assert record.error == "HTTP 503: 503: refused with 503"
    assert len(asked.served("refused always", 3)) == 3


@pytest.mark.parametrize(
    ("name", "outcome", "pieces", "error"),
    [
        ("error at once", "failed", 0, "500: the replica was lost"),
        ("error within", "broken", 2, "500: the replica was lost"),
        ("cut at once", "failed", 0, "the connection was lost within the answer: "),
        ("cut before its status", "failed", 0, "the server closed the connection before it answered"),
        ("cut within", "broken", 2, "the connection was lost within the answer: "),
        ("malformed", "failed", 0, "HTTP 400: 400: Object contains unknown field `unknown`"),
    ],
)
def test_errors_before_and_after_the_first_piece(
    asked: Asked, name: str, outcome: str, pieces: int, error: str
) -> None:
    record = asked.record(name)
    assert (record.outcome, len(record.pieces_s)) == (outcome, pieces)
    assert record.error.startswith(error)


def test_comments_give_the_phases_of_a_cold_wait(asked: Asked) -> None:
    record = asked.record("held")
    assert record.outcome == "answered"
    [(at_s, phase)] = record.phases
    assert phase == "imports"
    assert record.at_s < at_s < record.pieces_s[0]
    assert asked.served("held")[0]["comments"] == 3


def test_a_server_that_is_not_there_is_a_failure() -> None:
    record = driven([planned(0)], target("http://127.0.0.1:1")).records[0]
    assert (record.outcome, record.status, record.attempts) == ("failed", 0, 1)
    assert record.error.startswith("no connection: Cannot connect to host 127.0.0.1:1")


def test_an_interrupted_run_closes_open_requests_and_sends_no_more(stub: Stub) -> None:
    where = target(stub.url, seed=500)
    plan = [planned(0), planned(1, output_tokens=1000), planned(2, at_s=3600.0)]
    prompts = Scripted(where, {1: {"itl_s": 0.05}})

    async def interrupt(stop: asyncio.Event, records: list[Record]) -> None:
        while not records:  # The first is over; the second takes 50 s.
            await asyncio.sleep(0.01)
        stop.set()

    run = driven(plan, where, prompts=prompts, beside=interrupt)
    assert set(run.records) == {0, 1}
    assert run.records[0].outcome == "answered"
    assert (run.records[1].outcome, run.records[1].error) == ("abandoned", "the run was interrupted")
    assert stub.served(prompts.text(plan[1]))[0]["outcome"] == "cancelled"
