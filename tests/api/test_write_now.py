import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serve_app.api.engine_response import WriteNow, WriteNowMiddleware, write_now
from tests.http_server import port_of, uvicorn_with


async def receive() -> Message:
    raise AssertionError("nothing reads the request here")


async def offered(send: Send) -> WriteNow | None:
    """What an application finds in its scope."""
    found: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope)

    await WriteNowMiddleware(app)({"type": "http", "headers": []}, receive, send)
    return write_now(found[0])


async def test_a_server_other_than_uvicorns_offers_nothing() -> None:
    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent here")

    assert await offered(send) is None
    assert write_now({"type": "http", "extensions": {}}) is None


def test_in_another_process_it_is_nothing() -> None:
    cycle = RequestResponseCycle.__new__(RequestResponseCycle)
    cycle.flow = cycle.transport = None  # type: ignore[assignment]

    assert pickle.loads(pickle.dumps({"extensions": {"tideserve.write_now": WriteNow(cycle)}})) == {
        "extensions": {"tideserve.write_now": None}
    }


EVENTS = [b"data: %d\n\n" % number for number in range(3)]


async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers /whole with a length, and anything else piece by piece without one."""
    whole = scope["path"] == "/whole"
    headers = [(b"Content-Length", b"%d" % len(b"".join(EVENTS)))] if whole else []
    status = 204 if scope["path"] == "/nothing" else 200
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if status == 200:
        for event in EVENTS:
            await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body"})


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    """The port of uvicorn with our middleware, as Ray starts it."""
    async with uvicorn_with(WriteNowMiddleware(streaming)) as server:
        yield port_of(server)


async def answered(port: int, head: str) -> tuple[str, bytes]:
    """The head, in lower case, and the body of an answer after which the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + b"\r\n\r\n")
    async with asyncio.timeout(20):
        got, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return got.decode().lower(), body


@pytest.mark.parametrize("more", ["", "\r\nConnection: keep-alive", "\r\nHost: tide\r\nConnection: close"])
async def test_http_1_0_gets_a_stream_without_chunks(more: str) -> None:
    async with serving() as port:
        head, body = await answered(port, f"GET / HTTP/1.0{more}")

    assert body == b"".join(EVENTS)
    assert "transfer-encoding" not in head
    assert "connection: close" in head


async def test_http_1_0_keeps_known_lengths_and_empty_bodies() -> None:
    async with serving() as port:
        head, body = await answered(port, "GET /whole HTTP/1.0")
        assert (f"content-length: {len(body)}" in head, body) == (True, b"".join(EVENTS))

        for line in ("HEAD / HTTP/1.0", "GET /nothing HTTP/1.0"):
            head, body = await answered(port, line)
            assert (body, "transfer-encoding" in head) == (b"", False)
