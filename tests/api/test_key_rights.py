"""The rights and limits of named keys, over HTTP and with OpenAI's own client."""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import httpx2
import openai
import pytest
from httpx import Response

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.body_memory import BodyShare
from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.api.quotas import Quotas
from serve_app.settings.caller import ANYONE, Caller
from tests.api.server import Server, error_of
from tests.api.traffic_log import TrafficLog
from tests.stub_engine import StubEngine, failing, frames
from tests.timing import Clock

KEYS = """
keys:
  - {name: web, key: sk-web, lane: interactive, weight: 3, models: [tide]}
  - {name: lab, key: sk-lab, models: ["org/*"]}
  - {name: slow, key: sk-slow, requests_per_minute: 60, tokens_per_minute: 6000}
  - {name: spare, key: sk-spare, requests_per_minute: 1, work_conserving: true}
  - {name: few, key: sk-few, concurrent_requests: 1}
  - {name: boss, key: sk-boss, admin: true}
"""
CHAT = "/v1/chat/completions"
BODY = {"model": "tide", "max_tokens": 10, "messages": [{"role": "user", "content": "sea"}]}


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeyFile:
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    return ApiKeyFile(str(path))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def named(keys: ApiKeyFile, clock: Clock) -> AsyncIterator[Server]:
    chat = StubEngine(EngineReply(200, b'{"id": "1", "choices": []}'))
    server = Server(chat=chat, traffic={"tide": TrafficLog()}, api_keys=keys, quotas=Quotas(clock))
    async with server.http:
        yield server


async def ask(server: Server, key: str, body: Any = BODY, path: str = CHAT, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await server.http.post(path, json=body, headers={"Authorization": f"Bearer {key}", **named})


async def use_up(server: Server, key: str) -> int:
    """The key sends requests until one is refused. Returns the number of the others."""
    for number in count():
        if (await ask(server, key, {**BODY, "max_tokens": 0})).status_code == 429:
            return number
    raise AssertionError("unreachable")


async def test_engine_gets_the_caller_of_the_key(named: Server) -> None:
    await ask(named, "sk-web")
    await ask(named, "sk-slow")

    assert [request.caller for request in named.chat.requests] == [
        Caller("web", "interactive", 3.0),
        Caller("slow", "standard", 1.0),
    ]


@pytest.mark.parametrize(
    ("key", "asked", "lane"),
    [
        ("sk-web", "background", "background"),
        ("sk-web", "standard", "standard"),
        ("sk-slow", "interactive", "standard"),
    ],
)
async def test_client_may_lower_its_lane_and_never_raise_it(
    named: Server, key: str, asked: str, lane: str
) -> None:
    assert (await ask(named, key, x_tideserve_lane=asked)).status_code == 200
    assert named.chat.requests[0].caller.lane == lane


async def test_unknown_lane_is_refused(named: Server) -> None:
    reply = await ask(named, "sk-web", x_tideserve_lane="fast")
    assert reply.status_code == 400
    assert error_of(reply)["message"] == (
        "X-Tideserve-Lane = 'fast': must be one of interactive, standard, background"
    )


async def test_lane_may_be_lowered_without_keys(server: Server) -> None:
    for headers in ({}, {"X-Tideserve-Lane": "background"}):
        await server.http.post(CHAT, json=BODY, headers=headers)
    assert [request.caller for request in server.chat.requests] == [ANYONE, Caller(lane="background")]


async def test_model_that_is_not_allowed_is_403(named: Server) -> None:
    reply = await ask(named, "sk-lab")
    assert reply.status_code == 403
    assert error_of(reply) == {
        "message": "model = 'tide': the API key 'lab' may not use this model.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_allowed",
    }
    assert named.chat.requests == []
    assert (await ask(named, "sk-lab", {"prompt": "sea"}, "/generate")).status_code == 403
    assert (await ask(named, "sk-lab", {"model": "org/embed", "input": "sea"}, "/v1/embeddings")).is_success


async def test_a_key_may_use_a_model_by_its_name_or_by_an_alias(named: Server) -> None:
    named.aliases["tide"] = ["org/chat", "gpt-*", "gpt-4o"]
    statuses = [
        (await ask(named, key, {**BODY, "model": model})).status_code
        for key in ("sk-web", "sk-lab")
        for model in ("tide", "gpt-5", "org/chat")
    ]

    assert statuses == [200, 200, 200, 403, 403, 200]
    for key, names in (("sk-web", ["tide", "org/chat", "gpt-4o"]), ("sk-lab", ["org/chat", "org/embed"])):
        reply = await named.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert [card["id"] for card in reply.json()["data"]] == names


@pytest.mark.parametrize("alias", ["*", "org/*", "o?g/x"])
async def test_a_name_of_the_clients_choice_gives_no_right(named: Server, alias: str) -> None:
    named.aliases["tide"] = [alias]
    for asked in ("org/x", alias):
        body = {**BODY, "model": asked}
        assert (await ask(named, "sk-web", body)).status_code == 200
        for path in (CHAT, "/generate", "/tokenize", "/v1/embeddings"):
            reply = await ask(named, "sk-lab", {"model": asked, "prompt": "sea"}, path)
            assert (reply.status_code, error_of(reply)["code"]) == (403, "model_not_allowed")
    bearer = {"Authorization": "Bearer sk-lab"}
    assert (await named.http.get("/v1/models/org/x", headers=bearer)).status_code == 403
    cards = (await named.http.get("/v1/models", headers=bearer)).json()["data"]
    assert [card["id"] for card in cards] == ["org/embed"]
    assert all(request.caller.key == "web" for request in named.chat.requests)


async def test_models_lists_only_allowed_models(named: Server) -> None:
    bearer = {"Authorization": "Bearer sk-lab"}
    reply = await named.http.get("/v1/models", headers=bearer)
    assert [model["id"] for model in reply.json()["data"]] == ["org/embed"]
    assert (await named.http.get("/v1/models/org/embed", headers=bearer)).status_code == 200
    assert (await named.http.get("/v1/models/tide", headers=bearer)).status_code == 403

    reply = await ask(named, "sk-lab", {**BODY, "model": "nothing"})
    assert error_of(reply)["message"] == "model = 'nothing': does not exist; this server has 'org/embed'."


@pytest.mark.parametrize("stream", [True, False])
async def test_answer_tells_what_is_left(named: Server, stream: bool) -> None:
    if stream:
        named.chat.answer = frames(b"data: 1\n\n", b"data: [DONE]\n\n")
    limits = []
    for key in ("sk-slow", "sk-web"):
        reply = await ask(named, key, {**BODY, "stream": stream})
        limits.append([name for name in reply.headers if name.startswith("x-ratelimit")])

    assert limits[0] == [f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens")
                         for what in ("limit", "remaining", "reset")]  # fmt: skip
    assert limits[1] == []


async def test_true_count_of_tokens_is_charged(named: Server, clock: Clock) -> None:
    clock.now += 60
    named.chat.counts.input, named.chat.counts.output = 300, 2000
    await ask(named, "sk-slow")
    named.chat.counts.input = named.chat.counts.output = 0
    reply = await ask(named, "sk-slow", {"model": "tide", "tokens": []}, "/detokenize")
    assert "x-ratelimit-limit-tokens" not in reply.headers  # it generates nothing
    await ask(named, "sk-slow")
    reply = await ask(named, "sk-slow", {**BODY, "max_tokens": 0})
    left = int(reply.headers["x-ratelimit-remaining-tokens"])
    assert 3_700 - 700 < left < 3_700


@pytest.mark.parametrize(
    ("path", "prompt", "estimate"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "A" * 20_000}]}, 2048),  # the context length
        ("/v1/completions", {"prompt": ["A" * 10_000] * 2}, 5008),
    ],
)
async def test_estimate_of_one_prompt_is_at_most_the_context_length(
    keys: ApiKeyFile, clock: Clock, path: str, prompt: dict[str, Any], estimate: int
) -> None:
    server = Server(api_keys=keys, quotas=Quotas(clock), max_body_bytes=1 << 16)
    async with server.http:
        reply = await ask(server, "sk-slow", {"model": "tide", "max_tokens": 0, **prompt}, path)

    assert int(reply.headers["x-ratelimit-remaining-tokens"]) == pytest.approx(6000 - estimate, abs=10)


@pytest.mark.parametrize("answer", [RuntimeError("broken"), EngineReply(400, b"{}"), EngineReply(503, b"{}")])
async def test_failed_request_costs_no_tokens(named: Server, clock: Clock, answer: Any) -> None:
    clock.now += 60
    good, named.chat.answer = named.chat.answer, answer
    with pytest.raises(RuntimeError) if isinstance(answer, RuntimeError) else anyio.CancelScope():
        await ask(named, "sk-slow", {**BODY, "messages": [{"role": "user", "content": "x" * 3000}]})
    named.chat.answer = good
    reply = await ask(named, "sk-slow")
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) > 5_900


async def test_key_above_its_rate_gets_429_and_the_refusal_is_counted(named: Server) -> None:
    named.chat.counts.input = named.chat.counts.output = 0
    assert await use_up(named, "sk-slow") == 60
    reply = await ask(named, "sk-slow")

    assert reply.status_code == 429
    error = error_of(reply)
    assert (error["type"], error["code"]) == ("invalid_request_error", "rate_limit_exceeded")
    assert float(reply.headers["retry-after-ms"]) > 0
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.headers["x-should-retry"] == "true"
    assert reply.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(named.chat.requests) == 60


async def test_work_conserving_key_goes_on_in_the_lane_background(named: Server) -> None:
    for _ in range(3):
        reply = await ask(named, "sk-spare")
        assert reply.status_code == 200
    assert reply.headers["x-tideserve-lane"] == "background"
    assert [request.caller.lane for request in named.chat.requests] == [
        "standard",
        "background",
        "background",
    ]


async def test_request_above_its_rate_takes_the_body_memory_of_background(
    keys: ApiKeyFile, clock: Clock
) -> None:
    traffic = TrafficLog()
    server = Server(
        traffic={"tide": traffic}, api_keys=keys, quotas=Quotas(clock), max_body_memory_bytes=8_000
    )
    large = {**BODY, "user": "x" * 2_500}  # below half of the memory, and above a quarter
    async with server.http:
        assert (await ask(server, "sk-spare", large)).status_code == 200
        reply = await ask(server, "sk-spare", large)

    assert (reply.status_code, error_of(reply)["code"]) == (429, "body_memory_full")
    assert "requests of the lane background" in error_of(reply)["message"]
    assert reply.headers["retry-after"] == "5"  # the body fits again once the key is below its rate
    assert traffic.requests[-1].caller.lane == "background"


async def test_body_that_never_fits_the_memory_of_background_is_413(keys: ApiKeyFile, clock: Clock) -> None:
    traffic = TrafficLog()
    server = Server(
        traffic={"tide": traffic}, api_keys=keys, quotas=Quotas(clock), max_body_memory_bytes=8_000
    )
    async with server.http:
        large = {**BODY, "user": "x" * 2_500}  # below half of the memory, and above a quarter
        reply = await ask(server, "sk-few", large, x_tideserve_lane="background")
        assert (await ask(server, "sk-few", large)).status_code == 200

    assert (reply.status_code, error_of(reply)["code"]) == (413, "body_too_large")
    assert "retry-after" not in reply.headers
    assert "may have 2000, a quarter of http.max_body_memory_bytes = 8000" in error_of(reply)["message"]


async def test_request_without_body_memory_frees_its_place(keys: ApiKeyFile, clock: Clock) -> None:
    class FrameKeeper(TrafficLog):
        """Keeps the frames of a refused request, as a debugger would: its objects are not dropped."""

        def rejected(self, request: EngineRequest, error: ApiError) -> None:
            self.kept = error.__traceback__

    traffic = FrameKeeper()
    server = Server(
        traffic={"tide": traffic}, api_keys=keys, quotas=Quotas(clock), max_body_memory_bytes=12_000
    )
    other = BodyShare(server.app.state.endpoints.memory, None)
    other.grow(1_000)
    other.belongs_to("tide", background=True)
    async with server.http:
        reply = await ask(server, "sk-few", {**BODY, "user": "x" * 2_500}, x_tideserve_lane="background")
        assert (reply.status_code, error_of(reply)["code"]) == (429, "body_memory_full")
        assert traffic.kept is not None
        assert (await ask(server, "sk-few")).status_code == 200


async def test_end_of_a_request_frees_its_place(named: Server) -> None:
    for answer in (frames(b"data: 1\n\n"), failing(RuntimeError("broken"), b"data: 1\n\n"), frames()):
        named.chat.answer = answer
        assert (await ask(named, "sk-few", {**BODY, "stream": True})).status_code == 200


@pytest.fixture
async def client(named: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        httpx2.AsyncClient(transport=httpx2.ASGITransport(named.app)) as http,
        openai.AsyncOpenAI(api_key="sk-slow", base_url="http://tide/v1", http_client=http) as made,
    ):
        yield made


@pytest.fixture
def waits(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of OpenAI's client, which pass at once."""
    found: list[float] = []

    async def wait(seconds: float) -> None:
        found.append(seconds)
        clock.now += seconds

    monkeypatch.setattr("openai._base_client.anyio.sleep", wait)
    return found


async def test_openais_client_waits_exactly_as_told(
    named: Server, client: openai.AsyncOpenAI, waits: list[float]
) -> None:
    named.chat.counts.input = named.chat.counts.output = 0
    await use_up(named, "sk-slow")
    for _ in range(20):
        told = float((await ask(named, "sk-slow")).headers["retry-after-ms"]) / 1000
        answer = await client.chat.completions.with_raw_response.create(
            model="tide", messages=[{"role": "user", "content": "sea"}], max_tokens=10
        )
        assert answer.retries_taken == 1
        assert waits[-1] == told
    assert len(named.chat.requests) == 60 + 20


async def test_openais_client_does_not_wait_for_minutes(
    named: Server, client: openai.AsyncOpenAI, waits: list[float]
) -> None:
    named.chat.counts.input, named.chat.counts.output = 20_000, 0
    await ask(named, "sk-slow")
    with pytest.raises(openai.RateLimitError, match="tokens_per_minute = 6000") as error:
        await client.chat.completions.create(model="tide", messages=[{"role": "user", "content": "sea"}])

    assert waits == []
    assert error.value.code == "rate_limit_exceeded"
    assert int(error.value.response.headers["retry-after"]) > 120
    assert error.value.response.headers["x-should-retry"] == "false"


OF_KEYS = b"""llm_usage_tokens_total{model="a#b",key="web",lane="interactive"} 3
llm_rate_limited_total{key="slow",limit="requests"} 4
llm_usage_cost_total{key="",state="idle"} 5
"""
OF_ALL = b"""# HELP llm_queue_depth Waiting: {key="web"}
llm_queue_depth{model="tide",monkey="a"} 1
llm_ready 2
"""


@pytest.mark.parametrize(
    ("key", "shown"),
    [("", False), ("Bearer wrong", False), ("Bearer sk-web", False), ("Bearer sk-boss", True), ("no", True)],
)
async def test_metrics_show_series_of_keys_only_to_an_admin_key(named: Server, key: str, shown: bool) -> None:
    named = Server() if key == "no" else named  # a server without keys shows all
    named.observer.exposition = OF_ALL + OF_KEYS

    reply = await named.http.get("/metrics", headers={"Authorization": key} if key else {})

    left_out = b"# the series with the label `key` need an API key with `admin: true`\n"
    assert reply.content == OF_ALL + (OF_KEYS if shown else left_out)
