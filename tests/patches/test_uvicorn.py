import asyncio
import logging
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS

from serve_app.api.engine_response import WriteNowMiddleware, write_now
from serve_app.patches.uvicorn import ignore_upgrades, listen_beside


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    offered = write_now(scope) is not None
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
    await send({"type": "http.response.body", "body": b"%d" % offered})


@asynccontextmanager
async def serving(asgi: ASGIApp = _app, **options: str) -> AsyncIterator[tuple[uvicorn.Server, str]]:
    """A server as Ray starts it, and the URL of its port."""
    app = WriteNowMiddleware(asgi)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_config=None, **options)  # type: ignore[arg-type]
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        await server.shutdown()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where servers of this test listen, in a folder that is not there yet."""
    monkeypatch.setattr(uvicorn.Server, "startup", uvicorn.Server.startup)  # given back afterwards
    path = tmp_path / "node" / "i-abc"
    listen_beside(path)
    return path


async def asked(path: Path) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
        return await client.get("http://tide/")


async def test_the_application_answers_on_the_socket_as_on_the_port(path: Path) -> None:
    async with serving() as (_, url), httpx.AsyncClient() as client:
        assert (await client.get(url)).text == "1"
        assert (await asked(path)).text == "1"


async def test_nobody_else_may_use_the_socket(path: Path) -> None:
    async with serving():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_the_socket_closes_with_the_port(path: Path) -> None:
    async with serving():
        pass
    with pytest.raises(httpx.ConnectError):
        await asked(path)


async def test_a_replica_that_cannot_have_the_socket_has_its_port(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "ray.serve"):
        async with serving() as (_, url), httpx.AsyncClient() as client:
            assert (await client.get(url)).text == "1"
    assert f"no socket at {path}" in caplog.text


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the names of the request's headers and its body. The path `/last` ends the connection."""
    body, more = b" ".join([*(name for name, _ in scope["headers"]), b""]), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-length", b"%d" % len(body))]
    if scope["path"] == "/last":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
SIZED = H2C + b"Content-Length: 5\r\n\r\nocean"
CHUNKED = H2C + b"Transfer-Encoding: chunked\r\n\r\n2\r\noc\r\n3\r\nean\r\n0\r\n\r\n"
LAST = b"POST /last HTTP/1.1\r\n"


@pytest.mark.parametrize("cut", ["nowhere", "after the head", "within the body", "everywhere"])
@pytest.mark.parametrize(
    "request_",
    [SIZED, CHUNKED, WEBSOCKET + b"Content-Length: 5\r\n\r\nocean"],
    ids=["sized", "chunked", "websocket"],
)
async def test_request_for_another_protocol_keeps_its_body(
    monkeypatch: pytest.MonkeyPatch, request_: bytes, cut: str
) -> None:
    monkeypatch.setitem(HTTP_PROTOCOLS, "auto", HTTP_PROTOCOLS["auto"])  # given back afterwards
    ignore_upgrades()
    whole = LAST + request_
    head = whole.index(b"\r\n\r\n") + 4
    size = {"nowhere": len(whole), "after the head": head, "within the body": head + 3, "everywhere": 1}[cut]
    async with serving(_echo) as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(whole), size):
            writer.write(whole[start : start + size])
            await asyncio.sleep(0)  # so that the server reads the part on its own
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b" ocean")
    assert b"upgrade" not in answer.rpartition(b"\r\n")[2]


async def test_connection_goes_on_after_a_request_for_another_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(HTTP_PROTOCOLS, "auto", HTTP_PROTOCOLS["auto"])
    ignore_upgrades()
    async with serving(_echo) as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"POST / HTTP/1.1\r\n" + SIZED + (b"GET / HTTP/1.1\r\n" + H2C + b"\r\n") * 1500)
        writer.write(LAST + b"Content-Length: 3\r\n\r\nsea")
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()

    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 1502
    assert b" oceanHTTP/1.1" in answer
    assert answer.endswith(b" sea")


async def test_opening_handshake_of_a_websocket_is_an_ordinary_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HTTP_PROTOCOLS, "auto", HTTP_PROTOCOLS["auto"])
    ignore_upgrades()
    async with serving(_echo) as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /last HTTP/1.1\r\n" + WEBSOCKET + b"\r\n")
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
