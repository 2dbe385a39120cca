"""Answers that no well-behaved server gives, and what becomes of connections."""

import asyncio
import errno
import itertools
import json
import time

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtests.client.connection import TappedConnector
from loadtests.client.drive import drive, drive_closed
from loadtests.client.processes import pack
from loadtests.client.request import SpoiledError
from loadtests.plan import Planned
from loadtests.record import Record
from loadtests.scenario import Client, Closed
from tests.loadtests.client.driving import planned, target
from tests.loadtests.client.raw import DONE, HEAD, LAST, Answer, Asked, Raw, chunk, piece, raw_server


async def answered(answer: Answer, *plan: Planned, timeout_s: float = 20.0) -> tuple[list[Record], Raw]:
    records: list[Record] = []
    async with raw_server(answer) as raw:
        begin = time.monotonic() + 0.02
        kept = Client(timeout_s=timeout_s)
        await drive(plan or [planned(0)], target(raw.url), kept, begin, records.append, asyncio.Event())
    return sorted(records, key=lambda record: record.index), raw


def saying(*parts: bytes, close: bool = True) -> Answer:
    async def answer(asked: Asked) -> None:
        await asked.send(*parts)
        if close:
            asked.writer.close()

    return answer


async def test_an_end_without_done_after_a_piece_is_broken() -> None:
    [record], _ = await answered(saying(HEAD, chunk(piece()), LAST))
    assert (record.outcome, len(record.pieces_s)) == ("broken", 1)
    assert record.error == "the stream ended without [DONE]"


async def test_an_answer_that_is_no_stream_is_a_failure() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    [record], _ = await answered(saying(head + b"{}"))
    assert (record.outcome, record.error) == (
        "failed",
        "the answer is no event stream but application/json",
    )


async def test_a_redirect_is_a_failure_and_not_followed() -> None:
    head = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    [record], raw = await answered(saying(head))
    assert (record.outcome, record.error) == ("failed", "HTTP 307: redirected to /elsewhere")
    assert len(raw.asked) == 1


async def test_an_error_page_is_shortened() -> None:
    page = b"<h1>Bad Gateway</h1>" + b" " * 200_000
    head = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n" % len(page)
    [record], _ = await answered(saying(head + page))
    assert (record.outcome, record.status, record.error) == (
        "failed",
        502,
        "HTTP 502: <h1>Bad Gateway</h1>",
    )


async def test_bytes_that_are_not_http_are_a_failure() -> None:
    [record], _ = await answered(saying(b"SSH-2.0-OpenSSH\r\n\r\n"))
    assert (record.outcome, record.status) == ("failed", 0)
    assert record.error


async def test_a_rest_that_is_not_http_breaks_the_stream() -> None:
    [record], _ = await answered(saying(HEAD, chunk(piece()), b"no chunk\r\n", close=False))
    assert (record.outcome, len(record.pieces_s)) == ("broken", 1)
    assert record.error.startswith("the connection was lost within the answer: ")


async def test_a_connection_closed_without_an_answer_is_a_failure() -> None:
    [record], _ = await answered(saying())
    assert (record.outcome, record.error) == (
        "failed",
        "the server closed the connection before it answered",
    )


async def test_a_connection_is_used_again_once_its_answer_is_over() -> None:
    answer = saying(HEAD, chunk(piece()), chunk(DONE), LAST, close=False)
    records: list[Record] = []
    async with raw_server(answer) as raw:
        where, plan = target(raw.url), map(planned, range(4))
        how, begin = Closed(streams=1, for_s=60), time.monotonic()
        await drive_closed(how, plan, where, Client(), begin, records.append, asyncio.Event())
    assert [record.outcome for record in records] == ["answered"] * 4
    assert raw.connections == 1


async def test_an_answer_counts_although_its_body_never_ends() -> None:
    [record], _ = await answered(saying(HEAD, chunk(piece() + DONE), close=False))
    assert record.outcome == "answered"


async def test_requests_carry_the_targets_headers_and_paths() -> None:
    plan = [planned(0), planned(1, api="chat", model="other")]
    answer = saying(HEAD + chunk(DONE) + LAST, close=False)
    _, raw = await answered(answer, *plan)
    heads = {asked.head.split(b" ")[1]: asked.head for asked in raw.asked}
    assert set(heads) == {b"/v1/completions", b"/v1/chat/completions"}
    assert all(b"authorization: bearer key" in head.lower() for head in heads.values())
    assert {json.loads(asked.body)["model"] for asked in raw.asked} == {"tide", "other"}


STREAM = HEAD + chunk(b": phase=imports waited_s=3\n\n") + chunk(piece(b"x")) + chunk(piece() + DONE) + LAST


@given(cuts=st.lists(st.integers(1, len(STREAM) - 1), max_size=6, unique=True))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_segments_may_be_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    [record], _ = asyncio.run(answered(saying(*parts)))
    assert (record.outcome, len(record.pieces_s), record.cold_wait_s) == ("answered", 2, 3.0)
    assert [phase for _, phase in record.phases] == ["imports"]


async def test_half_a_surrogate_in_an_error_is_replaced() -> None:
    body = b'{"error":{"message":"bad \\ud83d"}}'
    head = b"HTTP/1.1 500 X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    [record], _ = await answered(saying(head + body))
    assert (record.outcome, record.error) == ("failed", "HTTP 500: error: bad ?")
    assert pack(record)


async def test_a_lack_of_local_resources_spoils_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: object, **__: object) -> None:
        raise aiohttp.ClientOSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(TappedConnector, "connect", connect)
    records: list[Record] = []
    with pytest.raises(SpoiledError, match=r"could not open every connection: .*Too many open files"):
        await drive(
            [planned(0)],
            target("http://127.0.0.1:9"),
            Client(),
            time.monotonic(),
            records.append,
            asyncio.Event(),
        )
    assert [record.outcome for record in records] == ["failed"]
