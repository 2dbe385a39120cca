"""The stages that the ingress notes of a request: relayed over HTTP to real data planes on loopback."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from serve_app.api.endpoints import ApiModel
from serve_app.api.engine_client import EngineReply
from serve_app.api.http_api import create_app
from serve_app.api.request_head import RequestTraces
from serve_app.api.request_trace import SHOW_HEADER, SHOWN, RequestTrace
from serve_app.settings.tree import HttpSettings
from serve_app.wire import spans as names
from serve_app.wire.spans import Span, cold_start_root
from tests.api.server import StubObserver
from tests.http_server import port_of, uvicorn_with
from tests.ingress.fleet import DEAD, MODEL, CountingEngine, Fleet, lose
from tests.stub_engine import LIMIT_S, StubEngine
from tests.timing import Clock

BODY = {"model": MODEL.name, "messages": [], "stream": True}
WHOLE = EngineReply(200, b"{}")


class Served:
    """An ingress behind uvicorn, as Ray Serve runs it, the traces of its requests, and their clock."""

    def __init__(
        self, fleet: Fleet, clock: Clock, traces: asyncio.Queue[RequestTrace], session: aiohttp.ClientSession
    ) -> None:
        self.fleet, self.clock, self.traces = fleet, clock, traces
        self._session = session

    async def open(self, *, shown: bool = False, **body: object) -> aiohttp.ClientResponse:
        headers = {SHOW_HEADER.decode(): "1"} if shown else {}
        return await self._session.post("/v1/chat/completions", json={**BODY, **body}, headers=headers)

    async def ask(self, **body: object) -> bytes:
        async with await self.open(**body) as reply:
            return await reply.read()

    async def spans(self) -> list[Span]:
        """The spans of the next trace, after the checks that hold of each."""
        async with asyncio.timeout(LIMIT_S):
            trace = await self.traces.get()
        root, *stages = trace.spans()
        assert {stage.parent_id for stage in stages} == {root.span_id}
        at = root.start
        for stage in sorted(stages, key=lambda stage: stage.start):
            assert stage.start <= at  # no moment is without a stage
            at = max(at, stage.end)
        assert at >= root.end
        return stages


@pytest.fixture
async def served(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * clock.now))
    ended: asyncio.Queue[RequestTrace] = asyncio.Queue()
    traces = RequestTraces(1.0, export=ended.put_nowait)
    app = create_app([ApiModel(MODEL.name, 0, fleet.client)], StubObserver(), HttpSettings(), traces=traces)
    async with uvicorn_with(app) as server:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port_of(server)}") as session:
            async with asyncio.timeout(LIMIT_S):
                yield Served(fleet, clock, ended, session)


def outline(spans: list[Span]) -> list[tuple[str, object]]:
    return [(span.name, span.attributes.get(names.OUTCOME)) for span in spans]


RECEIVED, PICKED = ("receive", None), ("pick", None)
ANSWERED, LOST = ("attempt", "answered"), ("attempt", "lost")


async def test_an_answer_is_a_pick_and_an_attempt(served: Served) -> None:
    await served.fleet.start(engine := StubEngine(WHOLE))

    await served.ask(stream=False)

    spans = await served.spans()
    assert outline(spans) == [RECEIVED, PICKED, ANSWERED]
    attempt = spans[-1]
    assert attempt.attributes[names.REPLICA] == spans[1].attributes[names.REPLICA] == "r1"
    assert spans[1].attributes[names.REASON] == "least load"
    assert engine.request.trace is not None
    assert engine.request.trace.span_id == attempt.span_id
    assert engine.request.trace.trace_id == attempt.trace_id


async def test_a_lost_replica_is_an_attempt_and_a_pause(served: Served) -> None:
    await served.fleet.start(StubEngine(DEAD))
    await served.fleet.start(StubEngine(WHOLE))

    await served.ask(stream=False)

    spans = await served.spans()
    assert outline(spans) == [RECEIVED, PICKED, LOST, ("backoff", None), PICKED, ANSWERED]
    assert spans[2].error
    assert spans[4].attributes[names.REASON] == "retry"


async def test_a_cold_start_is_a_queue_that_links_to_it(served: Served) -> None:
    asked = asyncio.create_task(served.ask(stream=False))
    await served.fleet.handle.asked.wait()
    (waiting,) = served.fleet.admission.queue.traces(8)
    served.clock.now += 9.0
    await served.fleet.start(StubEngine(WHOLE))
    await asked

    spans = await served.spans()
    assert outline(spans) == [RECEIVED, ("queue", "released"), PICKED, ANSWERED]
    assert spans[1].links == [cold_start_root("r1")]
    assert (spans[1].end - spans[1].start, spans[2].start) == (9e9, spans[1].end)
    assert waiting.split("-")[1:3] == [spans[1].trace_id, spans[1].parent_id]


def replica_of(comment: bytes) -> str:
    """The replica of the last attempt in a comment with a trace."""
    spans = json.loads(comment.removeprefix(SHOWN))["spans"]
    attempts = [span["attributes"] for span in spans if span["name"] == names.ATTEMPT]
    return str(attempts[-1][names.REPLICA])


async def test_a_lost_stream_is_continued_in_the_same_trace(served: Served) -> None:
    first = CountingEngine(until=25)
    plane = await served.fleet.start(first)
    async with await served.open(shown=True) as reply:
        begun = await reply.content.readuntil(b"\n\n")
        await first.reached.wait()
        served.clock.now += 3.0
        await served.fleet.start(CountingEngine())
        await lose(plane)
        rest = await reply.read()

    comments = [begun, *(part for part in rest.split(b"\n\n") if part.startswith(SHOWN))]
    assert [replica_of(comment) for comment in comments] == ["r1", "r2", "r2"]
    assert rest.index(b": continued") < rest.index(SHOWN)
    spans = await served.spans()
    assert outline(spans)[:3] == [RECEIVED, PICKED, LOST]
    assert outline(spans)[-3:] == [PICKED, ANSWERED, ("continuation", None)]
    assert spans[-1].attributes == {names.MOVES: 1, names.DELIVERED: 25}


async def test_a_stream_moves_off_a_draining_replica_in_one_trace(served: Served) -> None:
    first = CountingEngine(until=25)
    await served.fleet.start(first)
    asked = asyncio.create_task(served.ask())
    await first.reached.wait()
    served.clock.now += 3.0
    await served.fleet.start(CountingEngine())
    served.fleet.stop("r1")
    first.go_on(1)
    await asked

    spans = await served.spans()
    moved = ("attempt", "moved")
    assert outline(spans) == [RECEIVED, PICKED, moved, PICKED, ANSWERED, ("continuation", None)]
    assert spans[-1].attributes[names.DELIVERED] == 26


async def test_a_client_that_leaves_ends_its_attempt_as_abandoned(served: Served) -> None:
    await served.fleet.start(first := CountingEngine(until=25))
    reply = await served.open()
    await first.reached.wait()
    reply.close()

    assert outline(await served.spans()) == [RECEIVED, PICKED, ("attempt", "abandoned")]


async def test_a_refused_request_is_received_and_answered(served: Served) -> None:
    await served.fleet.start(CountingEngine(until=25))
    taken = [await served.open() for _ in range(MODEL.max_ongoing_requests)]

    await served.ask()

    assert outline(await served.spans()) == [RECEIVED, ("respond", None)]
    for each in taken:
        each.close()


async def test_a_queue_that_is_left_says_so(served: Served) -> None:
    leaving = asyncio.create_task(served.ask(stream=False))
    await served.fleet.handle.asked.wait()
    leaving.cancel()

    assert outline(await served.spans()) == [RECEIVED, ("queue", "abandoned")]
    assert served.fleet.admission.queue.traces(8) == []
