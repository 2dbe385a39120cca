"""The API with a file of keys: who gets in, and what the others are told."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from serve_app.api.api_keys import ApiKeyFile, ApiKeyMiddleware
from serve_app.api.engine_client import GPU_OPERATIONS, SPEECH_OPERATIONS, EngineRequest
from tests.api.server import Server, error_of

KEY = "sk-tide-1"
BEARER = {"Authorization": f"Bearer {KEY}"}
CHAT = "/v1/chat/completions"


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeyFile:
    path = tmp_path / "keys"
    path.write_text(f"sk-other\n{KEY}\n")
    return ApiKeyFile(str(path))


@pytest.fixture
async def guarded(keys: ApiKeyFile) -> AsyncIterator[Server]:
    server = Server(api_keys=keys)
    async with server.http:
        yield server


async def test_with_a_key_everything_is_as_it_was(guarded: Server) -> None:
    reply = await guarded.http.post(CHAT, json={"model": "tide"}, headers=BEARER)

    assert (reply.status_code, reply.json()) == (200, {"from": "chat"})
    assert (await guarded.http.get("/v1/models", headers=BEARER)).status_code == 200
    assert (await guarded.http.get("/nowhere", headers=BEARER)).status_code == 404


async def test_without_a_key_nothing_reaches_an_engine(guarded: Server) -> None:
    reply = await guarded.http.post(CHAT, json={"model": "tide"})

    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert error_of(reply) == {
        "message": "Authorization: an API key is required: Authorization: Bearer KEY",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
    assert guarded.chat.requests == []


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_probes_and_scrapes_need_no_key(guarded: Server, path: str) -> None:
    assert (await guarded.http.get(path)).status_code == 200
    assert (await guarded.http.get(path, headers={"Authorization": "Bearer wrong"})).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("HEAD", "/v1/models"),
        ("OPTIONS", CHAT),
        ("POST", "/generate"),
        ("GET", "/autoscaling/knobs"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("DELETE", CHAT),
        ("GET", "/health/x"),
        ("GET", "/v1/models/"),
        ("GET", "/Health"),
        ("GET", "/v1//health"),
        ("GET", "/health/../v1/models"),
        ("GET", "/v1/models?path=/health"),
        ("GET", "/metrics%2f..%2fv1/models"),
    ],
)
async def test_all_other_paths_are_401_without_a_key(guarded: Server, method: str, path: str) -> None:
    reply = await guarded.http.request(method, path)

    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize(
    "value", [f"bearer {KEY}", f"BEARER {KEY}", f"Bearer   {KEY}", f"Bearer {KEY} ", "Bearer sk-other"]
)
async def test_any_key_will_do_and_the_scheme_in_any_case(guarded: Server, value: str) -> None:
    assert (await guarded.http.get("/v1/models", headers={"Authorization": value})).status_code == 200


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"Bearer " + KEY.encode(), "given 2 times; it must be given once: Authorization: Bearer KEY"),
        (b"", "must have the form: Bearer KEY"),
        (b"Bearer", "must have the form: Bearer KEY"),
        (b"Bearer ", "must have the form: Bearer KEY"),
        (KEY.encode(), "must have the form: Bearer KEY"),
        (b"Basic c2stdGlkZS0x", "must have the form: Bearer KEY"),
        (b"Bearer\t" + KEY.encode(), "must have the form: Bearer KEY"),
        (b"Bearer wrong", "this API key is not one of the server's."),
        (b"Bearer " + KEY.encode() + b", Bearer x", "this API key is not one of the server's."),
        (b"Bearer schl\xfcssel", "this API key is not one of the server's."),
        (b"Bearer schl\xc3\xbcssel", "this API key is not one of the server's."),
        (b"\xff\xfe", "must have the form: Bearer KEY"),
    ],
)
async def test_a_wrong_header_is_not_repeated(guarded: Server, value: bytes, told: str) -> None:
    times = 2 if told.startswith("given") else 1
    reply = await guarded.http.get("/v1/models", headers=[(b"Authorization", value)] * times)

    assert reply.status_code == 401
    assert error_of(reply)["message"] == f"Authorization: {told}"


@pytest.mark.parametrize(
    "other",
    [
        ("Authorization", "Basic c2stdGlkZS0x"),
        ("Authorization", "Bearer "),
        ("Authorization", "Bearer wrong"),
        ("Authorization", ""),
        ("x-api-key", "wrong"),
        ("x-api-key", ""),
    ],
)
@pytest.mark.parametrize("good", [("Authorization", f"Bearer {KEY}"), ("x-api-key", KEY)])
async def test_a_good_key_in_any_header_counts(
    guarded: Server, good: tuple[str, str], other: tuple[str, str]
) -> None:
    allowed = 200 if good[0] != other[0] else 401  # of one header, nobody knows which value is the client's
    for headers in ([good, other], [other, good]):
        assert (await guarded.http.get("/v1/models", headers=headers)).status_code == allowed
    reply = await guarded.http.get("/v1/models", headers=[other, other])
    assert (reply.status_code, error_of(reply)["code"]) == (401, "invalid_api_key")


async def test_bearer_token_goes_first_if_both_headers_have_a_key(guarded: Server) -> None:
    await guarded.http.post(CHAT, json=PROMPT, headers={"x-api-key": "sk-other", **BEARER})
    await guarded.http.post(CHAT, json=PROMPT, headers=BEARER)
    first, second = guarded.chat.requests

    assert first.caller == second.caller


async def test_without_a_file_keys_are_ignored(server: Server) -> None:
    assert (await server.http.get("/v1/models")).status_code == 200
    assert (await server.http.get("/v1/models", headers={"Authorization": "?"})).status_code == 200


# Prefix caches.

PROMPT = {"model": "tide", "messages": [{"role": "user", "content": "Tell me of the tide. " * 60}]}
OTHER = {"Authorization": "Bearer sk-other"}


PATHS = (
    CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/score", "/rerank",
    "/pooling", "/classify", "/generate",
)  # fmt: skip
"""One path of each operation that uses a GPU."""


async def asked(server: Server, *headers: dict[str, str], **body: Any) -> list[EngineRequest]:
    """The same prompt of clients with these headers, as an engine is asked for it."""
    async with server.http:
        for given in headers:
            for path in PATHS:
                prompt = {"prompt": "sea"} if path == "/generate" else {**PROMPT, **body}
                assert (await server.http.post(path, json=prompt, headers=given)).status_code == 200
    return server.chat.requests


async def test_each_key_has_its_own_cache_salt(keys: ApiKeyFile) -> None:
    requests = await asked(Server(api_keys=keys), BEARER, OTHER)

    first, second = requests[: len(PATHS)], requests[len(PATHS) :]
    assert {request.operation for request in first} == GPU_OPERATIONS - SPEECH_OPERATIONS
    ((salt,), (other,)) = ({request.cache_salt for request in some} for some in (first, second))
    assert salt != other
    assert len(salt) == len(other) == 64


async def test_salt_is_stable_and_does_not_reveal_the_key(keys: ApiKeyFile) -> None:
    here, there = [(await asked(Server(api_keys=keys), BEARER))[0] for _ in range(2)]

    assert here.cache_salt == there.cache_salt
    assert KEY not in here.cache_salt
    assert sha256(KEY.encode()).hexdigest() not in here.cache_salt
    assert here.cache_salt not in repr(here)


async def test_no_body_sets_the_salt_of_a_key(keys: ApiKeyFile) -> None:
    (plain, *_), (own, *_) = [
        await asked(Server(api_keys=keys), BEARER, **body) for body in ({}, {"cache_salt": "a" * 64})
    ]

    assert own.cache_salt == plain.cache_salt


async def test_keys_may_share_prefix_caches(keys: ApiKeyFile) -> None:
    requests = await asked(Server(api_keys=keys, share_prefix_cache=True), BEARER, OTHER)

    assert {request.cache_salt for request in requests} == {""}
    assert requests[0].prefix == requests[len(PATHS)].prefix


# Below a `route_prefix`, as Ray Serve tells it, and what is not HTTP.


async def passed(keys: ApiKeyFile, **scope: Any) -> tuple[bool, list[Message]]:
    """Whether the application was reached, and what was sent in its place."""
    reached: list[Scope] = []
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope)

    async def receive() -> Message:
        raise AssertionError("nothing reads the request here")

    async def send(message: Message) -> None:
        sent.append(message)

    await ApiKeyMiddleware(app, keys)({"headers": [], **scope}, receive, send)
    return bool(reached), sent


@pytest.mark.parametrize(
    ("root", "path", "open_to_all"),
    [
        ("/tide", "/tide/health", True),
        ("/tide", "/health", True),
        ("/tide", "/tide", False),
        ("/tide", "/tidehealth", False),
        ("/health", "/health/v1/models", False),
        ("", "/tide/health", False),
    ],
)
async def test_probes_are_found_where_the_routes_are(
    keys: ApiKeyFile, root: str, path: str, open_to_all: bool
) -> None:
    reached, sent = await passed(keys, type="http", method="GET", path=path, root_path=root)

    assert reached is open_to_all
    assert [message["type"] for message in sent] == (
        [] if open_to_all else ["http.response.start", "http.response.body"]
    )


async def test_websockets_need_a_key(keys: ApiKeyFile) -> None:
    assert await passed(keys, type="lifespan") == (True, [])
    reached, sent = await passed(keys, type="websocket", path="/health", root_path="")
    assert (reached, sent) == (False, [{"type": "websocket.close", "code": 1008}])
