"""Lines of batches: requests of the lane background, without HTTP."""

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.batch_lines import BatchLines
from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from serve_app.api.quotas import Quotas
from serve_app.api.request_head import RequestTraces
from serve_app.api.request_trace import RequestTrace
from serve_app.runner.open_batch import retry_of
from serve_app.wire.batches import BatchLine, LineAnswer
from serve_app.wire.spans import batch_root
from tests.api.server import MAX_BODY_BYTES, Server
from tests.api.traffic_log import TrafficLog
from tests.stub_engine import LIMIT_S, MuteEngine, StubEngine

CHAT = "/v1/chat/completions"


def line(number: int = 0, **body: Any) -> BatchLine:
    return BatchLine(number, json.dumps({"model": "tide", **body}).encode())


def lines_of(
    server: Server,
    keys: ApiKeyFile | None = None,
    *,
    shared: bool = False,
    traces: RequestTraces | None = None,
) -> BatchLines:
    return BatchLines(server.app.state.endpoints, keys, shared, traces or RequestTraces())


def code_of(answer: LineAnswer) -> str:
    return str(json.loads(answer.body)["error"]["code"])


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeyFile:
    entries = [
        {"name": "night", "lane": "interactive", "weight": 3, "models": ["tide"]},
        {"name": "gone", "expires": "2020-01-01T00:00:00Z"},
        {"name": "few", "requests_per_minute": 60},
    ]
    for entry in entries:
        entry["hash"] = "sha256:" + sha256(str(entry["name"]).encode()).hexdigest()
    path = tmp_path / "keys.yaml"
    path.write_text(json.dumps({"keys": entries}))
    return ApiKeyFile(str(path))


async def test_line_is_a_background_request_with_its_body_untouched(server: Server) -> None:
    answer = await lines_of(server).answer(
        "", "batch_1", CHAT, BatchLine(7, b'{ "model":"tide" ,"x":[1, 2.50]}')
    )

    assert (answer.number, answer.status, answer.body) == (7, 200, b'{"from":"chat"}')
    (request,) = server.chat.requests
    assert (request.operation, request.body) == ("chat_completions", b'{ "model":"tide" ,"x":[1, 2.50]}')
    assert (request.caller.key, request.caller.lane) == ("", "background")
    assert request.request_id == answer.request_id


async def test_line_has_the_key_of_its_owner(server: Server, keys: ApiKeyFile) -> None:
    lines = lines_of(server, keys)

    answer = await lines.answer("night", "batch_1", CHAT, line())

    (request,) = server.chat.requests
    assert answer.status == 200
    assert (request.caller.key, request.caller.lane, request.caller.weight) == ("night", "background", 3)
    assert request.cache_salt == keys.named("night").cache_salt


async def test_owners_share_prefixes_only_if_the_setting_says_so(server: Server, keys: ApiKeyFile) -> None:
    await lines_of(server, keys, shared=True).answer("night", "batch_1", CHAT, line())

    assert server.chat.requests[0].cache_salt == ""


@pytest.mark.parametrize(
    ("owner", "body", "status", "code"),
    [
        ("gone", {}, 401, "invalid_api_key"),
        ("revoked", {}, 401, "invalid_api_key"),
        ("", {}, 401, "invalid_api_key"),
        ("night", {"model": "org/embed"}, 403, "model_not_allowed"),
        ("night", {"model": "none"}, 404, "model_not_found"),
        ("night", {"stream": True}, 400, "invalid_value"),
        ("night", {"text": "x" * MAX_BODY_BYTES}, 413, "body_too_large"),
    ],
)
async def test_refused_line_has_the_error_that_a_client_would_get(
    server: Server, keys: ApiKeyFile, owner: str, body: dict[str, Any], status: int, code: str
) -> None:
    answer = await lines_of(server, keys).answer(owner, "batch_1", CHAT, line(**body))

    assert (answer.status, code_of(answer)) == (status, code)
    assert server.chat.requests == server.embed.requests == []


async def test_line_that_is_no_object_is_a_400(server: Server) -> None:
    answer = await lines_of(server).answer("", "batch_1", CHAT, BatchLine(0, b"[1]"))

    assert (answer.status, code_of(answer)) == (400, "invalid_value")


async def test_limit_of_the_owner_applies_and_says_when_to_come_again(keys: ApiKeyFile) -> None:
    server = Server(quotas=Quotas(clock=lambda: 0.0))
    lines = lines_of(server, keys)

    answers = [await lines.answer("few", "batch_1", CHAT, line(number)) for number in range(61)]

    assert [answer.status for answer in answers] == [200] * 60 + [429]
    assert code_of(answers[60]) == "rate_limit_exceeded"
    assert answers[60].retry_after_s == pytest.approx(0.001)


async def test_line_that_never_fits_the_memory_has_an_error_as_its_answer() -> None:
    server = Server(max_body_memory_bytes=8_000)
    answer = await lines_of(server).answer("", "batch_1", CHAT, line(text="x" * 2_500))

    assert (answer.status, code_of(answer)) == (413, "body_too_large")
    assert retry_of(answer, attempts=1, faults=0) is None


async def test_line_of_a_model_that_its_owner_may_not_use_is_403(server: Server, keys: ApiKeyFile) -> None:
    server.aliases["org/embed"] = ["*"]
    answer = await lines_of(server, keys).answer("night", "batch_1", CHAT, line(model="tide-2"))

    assert (answer.status, code_of(answer)) == (403, "model_not_allowed")


async def test_refusal_by_an_engine_says_when_to_come_again(server: Server) -> None:
    server.chat.answer = ApiError(503, "no replica", code="model_unavailable", headers={"Retry-After": "30"})

    answer = await lines_of(server).answer("", "batch_1", CHAT, line())

    assert (answer.status, code_of(answer), answer.retry_after_s) == (503, "model_unavailable", 30.0)


async def test_error_of_an_engine_is_the_answer(server: Server) -> None:
    server.chat.answer = EngineReply(400, ApiError(400, "no such field", code="invalid_value").body())

    answer = await lines_of(server).answer("", "batch_1", CHAT, line())

    assert (answer.status, code_of(answer)) == (400, "invalid_value")


@pytest.mark.parametrize(
    ("fault", "logged"),
    [(RuntimeError("a fault"), "a fault"), (asyncio.CancelledError(), "cancelled at its other end")],
)
async def test_fault_of_the_server_is_a_500_and_logged(
    server: Server, caplog: pytest.LogCaptureFixture, fault: BaseException, logged: str
) -> None:
    server.chat.answer = fault

    answer = await lines_of(server).answer("", "batch_1", CHAT, line())

    assert (answer.status, code_of(answer)) == (500, "internal_error")
    assert logged in caplog.text


async def test_lines_count_as_requests_and_free_their_memory() -> None:
    traffic = TrafficLog()
    engine = StubEngine(EngineReply(200, b"{}"))
    server = Server(chat=engine, traffic={"tide": traffic}, max_body_memory_bytes=4 * MAX_BODY_BYTES)
    lines = lines_of(server)

    for number in range(8):
        assert (await lines.answer("", "batch_1", CHAT, line(number, text="x" * 3000))).status == 200

    assert traffic.names == ["opened", "first_byte", "closed"] * 8
    assert traffic.seen["closed"][0] == "ok"


async def test_cancelled_line_frees_its_sequence() -> None:
    engine = MuteEngine()
    server = Server(chat=engine)
    running = asyncio.create_task(lines_of(server).answer("", "batch_1", CHAT, line()))
    async with asyncio.timeout(LIMIT_S):
        await engine.entered.wait()

        running.cancel()
        await engine.left.wait()

    assert engine.cancelled


async def test_each_line_has_a_trace_that_links_to_its_batch(server: Server, keys: ApiKeyFile) -> None:
    exported: list[RequestTrace] = []
    lines = lines_of(server, keys, traces=RequestTraces(1.0, export=exported.append))

    await lines.answer("night", "batch_1", CHAT, line())
    refused = await lines.answer("gone", "batch_1", CHAT, line())

    roots = [trace.spans()[0] for trace in exported]
    assert [list(root.links) for root in roots] == [[batch_root("batch_1")]] * 2
    assert [root.attributes["http.response.status_code"] for root in roots] == [200, 401]
    assert roots[0].attributes["tideserve.lane"] == "background"
    assert len({root.trace_id for root in roots} | {batch_root("batch_1").trace_id}) == 3
    assert json.loads(refused.body)["error"]["trace_id"] == roots[1].trace_id
    (request,) = server.chat.requests
    assert request.context is not None
    assert request.context.trace_id == roots[0].trace_id
