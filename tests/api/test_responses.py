"""Responses at the HTTP API: OpenAI's own client, Codex's reading of a stream, and a model that starts."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from httpx2 import ASGITransport, AsyncClient

from serve_app.api.dialect import RESPONSES, ColdWait
from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from tests.api.server import Server
from tests.stub_engine import StubEngine, failing, frames

START_S = 90
KEEP_ALIVE_S = 15
ID = "resp_r-1"


def event(kind: str, number: int, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, "sequence_number": number, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def response(status: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "object": "response",
        "created_at": 1,
        "model": "tide",
        "status": status,
        "output": [],
        **fields,
    }


TEXT = {"type": "output_text", "text": "sea", "annotations": []}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [TEXT]}
USAGE = {
    "input_tokens": 3,
    "output_tokens": 1,
    "total_tokens": 4,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
CREATED = event("response.created", 0, response=response("in_progress"))
PLACE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
BEGINNING = (
    CREATED
    + event("response.in_progress", 1, response=response("in_progress"))
    + event("response.output_item.added", 2, output_index=0, item={**MESSAGE, "content": []})
    + event("response.content_part.added", 3, part={**TEXT, "text": ""}, **PLACE)
    + event("response.output_text.delta", 4, delta="sea", logprobs=[], **PLACE)
)
END = (
    event("response.output_text.done", 5, text="sea", logprobs=[], **PLACE)
    + event("response.output_item.done", 6, output_index=0, item=MESSAGE)
    + event("response.completed", 7, response=response("completed", output=[MESSAGE], usage=USAGE))
)
CUT = event("response.incomplete", 7, response=response("incomplete", output=[MESSAGE], usage=USAGE))


@dataclass
class StartingEngine(StubEngine):
    """Answers after a start of `START_S` by its own clock, which it tells each `KEEP_ALIVE_S`."""

    now_s: float = 0.0

    async def _reply(self) -> EngineReply:
        while self.now_s < START_S:
            self.now_s += KEEP_ALIVE_S
            if self.request.tell_wait is not None:
                await self.request.tell_wait(ColdWait("tide", "load", None, self.now_s))
        return await super()._reply()


@dataclass
class Codex:
    """Reads a stream as Codex does: an event with JSON data resets the idle timeout, and no comment does."""

    heard: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    completed: bool = False

    def read(self, frames: bytes) -> "Codex":
        for block in frames.decode().split("\n\n"):
            data = [line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")]
            if not data:
                continue
            document = json.loads("\n".join(data))
            self.heard.append(document["type"])
            self.completed |= document["type"] == "response.completed"
            if document["type"] == "response.failed":
                self.error = document["response"]["error"]
        return self


@pytest.fixture
async def client_of() -> Any:
    """Return a function from an engine to OpenAI's client of it, for the model `tide`."""
    made: list[openai.AsyncOpenAI] = []

    def client(engine: StubEngine) -> openai.AsyncOpenAI:
        transport = ASGITransport(Server(chat=engine).app)
        http = AsyncClient(transport=transport, headers={"X-Request-Id": "r-1"})
        made.append(
            openai.AsyncOpenAI(base_url="http://tide/v1", api_key="none", max_retries=0, http_client=http)
        )
        return made[-1]

    yield client
    for one in made:
        await one.close()


async def posted(engine: StubEngine, **body: Any) -> tuple[int, bytes]:
    server = Server(chat=engine)
    async with server.http:
        reply = await server.http.post(
            "/v1/responses", json={"model": "tide", "input": "sea", **body}, headers={"X-Request-Id": "r-1"}
        )
        return reply.status_code, reply.content


async def test_request_reaches_the_engine_as_a_response() -> None:
    engine = StubEngine(frames(BEGINNING, END))

    status, body = await posted(engine, stream=True, max_output_tokens=9)

    (asked,) = engine.requests
    assert (status, body) == (200, BEGINNING + END)
    assert (asked.operation, asked.wants_stream, asked.model) == ("responses", True, "tide")
    assert asked.prefix is not None
    assert engine.request.outcome == "ok"


async def test_openais_client_reads_a_stream(client_of: Any) -> None:
    client = client_of(StubEngine(frames(BEGINNING, END)))

    async with client.responses.stream(model="tide", input="sea") as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_response()

    assert types[0] == "response.created"
    assert final.output_text == "sea"
    assert final.usage.total_tokens == 4


async def test_openais_client_waits_for_a_model_that_starts(client_of: Any) -> None:
    client = client_of(StartingEngine(frames(BEGINNING, END)))

    async with client.responses.stream(model="tide", input="sea") as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_response()

    assert types[:7] == ["response.created", *["response.queued"] * (START_S // KEEP_ALIVE_S)]
    assert types[7] == "response.in_progress"
    assert types.count("response.created") == 1
    assert (final.id, final.output_text) == (ID, "sea")


async def test_codex_hears_an_event_in_each_keep_alive_interval() -> None:
    _, body = await posted(StartingEngine(frames(BEGINNING, END)), stream=True)

    codex = Codex().read(body)
    assert codex.heard[: 1 + START_S // KEEP_ALIVE_S] == [
        "response.created",
        *["response.queued"] * (START_S // KEEP_ALIVE_S),
    ]
    assert codex.completed
    assert body.count(b": waiting for a replica of tide") == START_S // KEEP_ALIVE_S


async def test_wait_within_an_answer_keeps_what_clients_have_read(client_of: Any) -> None:
    engine = StubEngine(RuntimeError("unused"))

    async def moves() -> AsyncIterator[bytes]:
        yield BEGINNING
        for waited_s in (1, 2):
            assert engine.request.tell_wait is not None
            await engine.request.tell_wait(ColdWait("tide", "load", None, waited_s))
            yield b": continued on another replica after 0.50 s\n\n"
        yield END

    engine.answer = moves
    _, body = await posted(engine, stream=True)
    number = [
        json.loads(line[6:])["sequence_number"] for line in BEGINNING.split(b"\n") if b"data: " in line
    ][-1]
    assert body.count(b'"keepalive","sequence_number":%d' % number) == 2
    async with client_of(engine).responses.stream(model="tide", input="sea") as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_response()

    assert types.count("keepalive") == 2
    assert "response.queued" not in types
    assert final.output_text == "sea"


REFUSED = ApiError(429, "full.", code="queue_full", headers={"Retry-After": "3"})
ASKED = EngineRequest("responses", b"", "r-1")
LATE = ApiError(503, "no replica.", code="model_unavailable")


@pytest.mark.parametrize(
    ("engine", "code"),
    [
        (StartingEngine(REFUSED), "rate_limit_exceeded"),
        (StartingEngine(LATE), "server_error"),
        (
            StartingEngine(EngineReply(400, ApiError(400, "no", code="invalid_value").body())),
            "invalid_prompt",
        ),
        (
            StartingEngine(EngineReply(400, ApiError(400, "no", code="context_length_exceeded").body())),
            "context_length_exceeded",
        ),
        (StubEngine(failing(ZeroDivisionError("bug"), BEGINNING)), "server_error"),
        (StubEngine(frames(BEGINNING, RESPONSES.last_frames(LATE, ASKED, BEGINNING))), "server_error"),
    ],
    ids=["429 after a wait", "503 after a wait", "400 after a wait", "too long", "bug", "engine's"],
)
async def test_failed_stream_ends_in_events_that_clients_know(
    engine: StubEngine, code: str, client_of: Any
) -> None:
    _, body = await posted(engine, stream=True)

    codex = Codex().read(body)
    assert codex.heard[-2:] == ["error", "response.failed"]
    assert codex.error is not None
    assert codex.error["code"] == code
    assert engine.request.outcome in ("error", "rejected", "client_error")

    numbers = [
        json.loads(line[6:])["sequence_number"] for line in body.split(b"\n") if line.startswith(b"data: ")
    ]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    "engine",
    [StartingEngine(LATE), StubEngine(failing(ZeroDivisionError("bug"), BEGINNING))],
    ids=["after a wait", "within the answer"],
)
async def test_openais_client_raises_for_a_failed_stream(engine: StubEngine, client_of: Any) -> None:
    async with client_of(engine).responses.stream(model="tide", input="sea") as stream:
        with pytest.raises(openai.APIError):
            await stream.until_done()


def test_codex_reads_the_delay_of_a_refusal() -> None:
    told = Codex().read(RESPONSES.last_frames(REFUSED, ASKED)).error

    assert told == {"code": "rate_limit_exceeded", "message": "full. Please try again in 3s."}


async def test_refusal_before_the_stream_has_its_status(client_of: Any) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        await client_of(StubEngine(REFUSED)).responses.create(model="tide", input="sea", stream=True)

    assert caught.value.code == "queue_full"


async def test_whole_response_is_parsed(client_of: Any) -> None:
    body = json.dumps(response("completed", output=[MESSAGE], usage=USAGE)).encode()

    whole = await client_of(StubEngine(EngineReply(200, body))).responses.create(model="tide", input="sea")

    assert whole.output_text == "sea"


@pytest.mark.parametrize(
    ("last", "ends"),
    [
        (END, True),
        (BEGINNING, False),
        (b"", False),
        (CUT, True),
        (event("response.failed", 1, response=response("failed")), True),
        (event("response.output_text.delta", 1, delta="\n\nevent: response.completed\n"), False),
    ],
)
def test_end_of_a_stream_is_in_the_name_of_its_last_event(last: bytes, ends: bool) -> None:
    assert RESPONSES.ends(last) == ends
    assert RESPONSES.failed(b"", last) == (last not in (END, CUT))
