"""Which pages and which hosts get in, through the whole application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.browsers import is_loopback
from tests.api.server import Server, error_of
from tests.stub_engine import StubEngine, frames

LOCAL = {"Host": "127.0.0.1:8000"}
PAGE = "https://chat.example.com"
BODY = {"model": "tide"}
PREFLIGHT = {**LOCAL, "Access-Control-Request-Method": "POST"}
POSTS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/score", "/v2/rerank", "/classify",
    "/pooling", "/tokenize", "/detokenize", "/generate",
)  # fmt: skip


@asynccontextmanager
async def serving(listens_on: str | None = "127.0.0.1", **settings: Any) -> AsyncIterator[Server]:
    server = Server(listens_on=listens_on, **settings)
    async with server.http:
        yield server


GIVEN = (
    "application/x-www-form-urlencoded", "text/plain", "text/plain; application/json",
    "multipart/form-data; boundary=x", "application/jsonp", "application/xml", "", None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "given"), [*((path, None) for path in POSTS), *((POSTS[0], given) for given in GIVEN)]
)
async def test_body_not_declared_as_json_is_a_415(path: str, given: str | None) -> None:
    async with serving() as server:
        del server.http.headers["content-type"]
        headers = LOCAL if given is None else {**LOCAL, "Content-Type": given}
        reply = await server.http.post(path, content=b'{"model":"tide","prompt":"x"}', headers=headers)

    error = error_of(reply)
    assert (reply.status_code, error["code"]) == (415, "unsupported_media_type")
    assert "must be application/json" in error["message"]
    assert given is None or f"Content-Type = '{given}'" in error["message"]
    assert server.chat.requests == []


@pytest.mark.parametrize(
    "given", ["application/json", "Application/JSON", "application/json ; charset=utf-8"]
)
async def test_parameters_of_json_are_accepted(given: str) -> None:
    async with serving() as server:
        headers = {**LOCAL, "Content-Type": given}
        assert (await server.http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]", "localhost."]
)
async def test_a_server_on_loopback_answers_as_itself(host: str) -> None:
    async with serving() as server:
        assert (await server.http.get("/v1/models", headers={"Host": host})).status_code == 200


OTHERS = (
    "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", "xlocalhost",
    "10.0.0.1", "127.0.0.1:80:80", "localhost:80@evil", "", "[::2]", "::1", "a b",
)  # fmt: skip
PATHS = ("/v1/models", "/metrics", "/autoscaling/knobs", "/docs", "/nowhere")


@pytest.mark.parametrize(
    ("host", "path"), [*((host, PATHS[0]) for host in OTHERS), *((OTHERS[0], path) for path in PATHS[1:])]
)
async def test_a_server_on_loopback_answers_as_nobody_else(host: str, path: str) -> None:
    async with serving() as server:
        reply = await server.http.get(path, headers={"Host": host})

    error = error_of(reply)
    assert (reply.status_code, error["code"]) == (421, "host_not_allowed")
    assert error["message"].startswith(
        f"Host = '{host}': this server answers as localhost, 127.0.0.1, [::1]; "
    )


async def test_a_second_host_does_not_slip_through() -> None:
    async with serving() as server:
        headers = [("Host", "localhost"), ("Host", "evil.example")]
        assert (await server.http.get("/v1/models", headers=headers)).status_code == 421


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_may_use_any_host(path: str) -> None:
    async with serving(allowed_hosts=["api.example.com"], listens_on="0.0.0.0") as server:
        assert (await server.http.get(path, headers={"Host": "10.1.2.3"})).status_code == 200


@pytest.mark.parametrize("listens_on", ["0.0.0.0", "::", "10.0.0.1", None])
async def test_elsewhere_any_host_is_answered_unless_some_are_set(listens_on: str | None) -> None:
    async with serving(listens_on) as server:
        assert (await server.http.get("/v1/models", headers={"Host": "any.name"})).status_code == 200

    async with serving(listens_on, allowed_hosts=["api.example.com", "*.tide.example", "[::1]"]) as server:
        for host in ("api.example.com", "a.tide.example:8443", "a.b.tide.example", "[::1]:8000"):
            assert (await server.http.get("/v1/models", headers={"Host": host})).status_code == 200
        for host in ("any.name", "tide.example", "xtide.example", "localhost"):
            assert (await server.http.get("/v1/models", headers={"Host": host})).status_code == 421


async def test_the_address_it_listens_on_is_its_own_name() -> None:
    async with serving("127.0.0.2") as server:
        assert (await server.http.get("/v1/models", headers={"Host": "127.0.0.2:8000"})).status_code == 200

    async with serving(allowed_hosts=["*"]) as server:
        assert (await server.http.get("/v1/models", headers={"Host": "any.name"})).status_code == 200


async def post(server: Server, origin: str, path: str = "/v1/completions", **headers: str) -> Response:
    return await server.http.post(path, json=BODY, headers={**LOCAL, "Origin": origin, **headers})


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:3000", "http://127.0.0.1.evil:8000", ""])
async def test_another_page_reaches_no_engine_of_a_keyless_server(origin: str) -> None:
    async with serving() as server:
        reply = await post(server, origin)

    error = error_of(reply)
    assert (reply.status_code, error["code"]) == (403, "origin_not_allowed")
    assert error["message"].startswith(f"Origin = '{origin}': ")
    assert "http.cors_origins" in error["message"]
    assert server.chat.requests == []


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8000", "https://127.0.0.1:8000"])
async def test_its_own_pages_may_use_it(origin: str) -> None:
    async with serving() as server:
        reply = await post(server, origin)

    assert reply.status_code == 200
    assert "access-control-allow-origin" not in reply.headers


async def test_a_page_may_not_read_what_it_asks_for() -> None:
    async with serving() as server:
        reply = await server.http.get("/v1/models", headers={**LOCAL, "Origin": PAGE})

    assert reply.status_code == 200
    assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_with_keys_or_elsewhere_an_origin_alone_refuses_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-one")
    async with serving(api_keys=ApiKeyFile(str(keys))) as server:
        reply = await post(server, PAGE, Authorization="Bearer sk-one")
        assert (reply.status_code, "access-control-allow-origin" in reply.headers) == (200, False)
    async with serving("0.0.0.0") as server:
        reply = await post(server, PAGE)
        assert (reply.status_code, "access-control-allow-origin" in reply.headers) == (200, False)


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "0.0.0.0"])
async def test_a_preflight_of_another_page_is_a_403(listens_on: str) -> None:
    async with serving(listens_on, cors_origins=["https://other.example"]) as server:
        reply = await server.http.options("/v1/completions", headers={**PREFLIGHT, "Origin": PAGE})

    assert (reply.status_code, error_of(reply)["code"]) == (403, "origin_not_allowed")
    assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_a_preflight_of_an_allowed_page_allows_what_it_asks(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-one")
    asked = "authorization,content-type,traceparent,x-request-timeout-seconds,x-session-id,x-stainless-os"
    headers = {**PREFLIGHT, "Origin": PAGE, "Access-Control-Request-Headers": asked}
    async with serving(cors_origins=[PAGE], api_keys=ApiKeyFile(str(keys))) as server:  # it carries no key
        reply = await server.http.options("/v1/chat/completions", headers=headers)
        private = {"Access-Control-Request-Private-Network": "true"}
        local = await server.http.options("/v1/chat/completions", headers={**headers, **private})

    assert (reply.status_code, reply.content) == (204, b"")
    got = {name: value for name, value in reply.headers.items() if name != "x-request-id"}
    assert got == {
        "access-control-allow-origin": PAGE,
        "vary": "Origin",
        "access-control-allow-methods": "GET, HEAD, POST, PUT, DELETE",
        "access-control-max-age": "7200",
        "access-control-allow-headers": asked,
    }
    assert local.headers["access-control-allow-private-network"] == "true"


async def test_an_allowed_page_streams_and_reads_errors() -> None:
    events = [b'data: {"n":1}\n\n', b"data: [DONE]\n\n"]
    async with serving(cors_origins=[PAGE], chat=StubEngine(frames(*events))) as server:
        reply = await server.http.post(
            "/v1/completions", json={**BODY, "stream": True}, headers={**LOCAL, "Origin": PAGE}
        )
        assert reply.content == b"".join(events)
        lost = await server.http.get("/nowhere", headers={**LOCAL, "Origin": PAGE})
        other = await post(server, "https://other.example")

    for each in (reply, lost):
        assert each.headers["access-control-allow-origin"] == PAGE
        exposed = each.headers["access-control-expose-headers"]
        assert exposed.startswith(
            "X-Request-ID, Request-Id, Retry-After, Retry-After-Ms, X-Should-Retry, X-Tideserve-Lane, "
        )
        assert "X-RateLimit-Remaining-Tokens" in exposed
        assert each.headers["vary"] == "Origin"
    assert (lost.status_code, other.status_code) == (404, 403)


async def test_an_allowed_page_reads_a_fault_of_the_servers_own() -> None:
    async with serving(cors_origins=["*"], chat=StubEngine(ZeroDivisionError())) as server:
        with pytest.raises(ZeroDivisionError):  # Starlette raises it again, once it has answered
            await post(server, PAGE)
        quiet = ASGITransport(server.app, raise_app_exceptions=False)
        async with AsyncClient(transport=quiet, base_url="http://localhost") as client:
            reply = await client.post("/v1/completions", json=BODY, headers={"Origin": PAGE})

    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (500, "*")


async def test_a_page_without_a_key_reads_that_it_needs_one(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-one")
    async with serving(cors_origins=[PAGE], api_keys=ApiKeyFile(str(keys))) as server:
        reply = await post(server, PAGE)

    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (401, PAGE)


def test_loopback_addresses_are_known() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "", "tide", None)))
