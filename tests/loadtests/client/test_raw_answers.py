"""Answers that no well-behaved server gives, and what becomes of connections."""

import asyncio
import errno
import itertools
import json
import resource
import time

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtests.client.connection import TappedConnector, allow_many_connections
from loadtests.client.drive import drive, drive_closed
from loadtests.client.processes import Message, pack
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


def reply(head: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = (b"HTTP/1.1 " + head, *headers, b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("parts", "outcome", "pieces", "told"),
    [
        pytest.param(
            [HEAD, chunk(piece()), LAST], "broken", 1, "the stream ended without [DONE]", id="no DONE"
        ),
        pytest.param(
            [reply(b"200 OK", b"{}", b"Content-Type: application/json")],
            "failed", 0, "the answer is no event stream but application/json", id="no stream",
        ),
        pytest.param(
            [reply(b"307 Temporary Redirect", b"", b"Location: /elsewhere")],
            "failed", 0, "HTTP 307: redirected to /elsewhere", id="redirect",
        ),
        pytest.param(
            [reply(b"502 Bad Gateway", b"<h1>Bad Gateway</h1>" + b" " * 200_000)],
            "failed", 0, "HTTP 502: <h1>Bad Gateway</h1>", id="long error page",
        ),
        pytest.param(
            [reply(b"500 X", b'{"error":{"message":"bad \\ud83d"}}', b"Content-Type: application/json")],
            "failed", 0, "HTTP 500: error: bad ?", id="half a surrogate pair",
        ),
        pytest.param([b"SSH-2.0-OpenSSH\r\n\r\n"], "failed", 0, "", id="not HTTP"),
        pytest.param(
            [HEAD, chunk(piece()), b"no chunk\r\n"],
            "broken", 1, "the connection was lost within the answer: ", id="rest not HTTP",
        ),
        pytest.param([], "failed", 0, "the server closed the connection before it answered", id="closed"),
    ],
)  # fmt: skip
async def test_answers_that_are_wrong_are_recorded_with_their_fault(
    parts: list[bytes], outcome: str, pieces: int, told: str
) -> None:
    [record], raw = await answered(saying(*parts))

    assert (record.outcome, len(record.pieces_s)) == (outcome, pieces)
    assert record.error.startswith(told)
    assert record.error
    assert len(raw.asked) == 1
    assert pack(Message(record))


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
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_segments_may_be_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    [record], _ = asyncio.run(answered(saying(*parts)))
    assert (record.outcome, len(record.pieces_s), record.cold_wait_s) == ("answered", 2, 3.0)
    assert [phase for _, phase in record.phases] == ["imports"]


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


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        allowed = allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == allowed
        assert allowed > 512
        assert allow_many_connections() == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def cancelled_after(turns: int) -> bool:
    """Cancel a load without requests after so many turns of the loop; whether it was still running."""
    records: list[Record] = []
    load = asyncio.create_task(
        drive([], target("http://127.0.0.1:9"), Client(), time.monotonic(), records.append, asyncio.Event())
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    if load.done():
        return False
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    return True


async def test_a_cancelled_load_is_cancelled_at_every_turn() -> None:
    turns = 0
    while await cancelled_after(turns):
        turns += 1

    assert turns > 3
