"""Streams from engine replicas to a client's connection: uvicorn, the ingress and data planes are real.

`tests/simulation` takes the same path, with losses and with clients that leave or read slowly.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import uvicorn
from starlette.types import Message, Receive, Scope, Send

from serve_app.api.engine_client import EngineRequest, Traffic
from serve_app.api.engine_response import EngineResponse, WriteNowMiddleware
from tests.http_server import port_of, uvicorn_with
from tests.ingress.fakes import request
from tests.ingress.fleet import DONE, TOKENS, WHOLE, CountingEngine, Fleet, frame, without_comments
from tests.stub_engine import StubEngine

ERROR = b'event: error\ndata: {"error":{}}\n\n'


class Server:
    """An ingress whose one route streams what the fleet's engines answer."""

    def __init__(self, fleet: Fleet, server: uvicorn.Server) -> None:
        self.fleet = fleet
        self.sent: list[bytes] = []
        """What took the way through `send`."""
        self.requests: list[EngineRequest] = []
        self.ended = asyncio.Event()
        self.clients: list[asyncio.StreamWriter] = []
        self._server = server

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            if message.get("body"):
                self.sent.append(message["body"])
            await send(message)

        self.requests.append(request(wants_stream=True))
        await EngineResponse(self.fleet.client, self.requests[-1], Traffic())(scope, receive, noted)
        self.ended.set()

    async def connect(self) -> "Client":
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(self._server))
        self.clients.append(writer)
        writer.write(b"POST / HTTP/1.1\r\nHost: tide\r\nContent-Length: 0\r\n\r\n")
        return Client(reader, writer)


class Client:
    """One that asks for one stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def head(self) -> bytes:
        return await self._reader.readuntil(b"\r\n\r\n")

    async def chunk(self) -> bytes:
        """The next of the body's; empty for its end."""
        length = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(length + 2))[:-2]

    async def rest(self) -> bytes:
        chunks = []
        while chunk := await self.chunk():
            chunks.append(chunk)
        return b"".join(chunks)


@asynccontextmanager
async def serving(fleet: Fleet) -> AsyncIterator[Server]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await WriteNowMiddleware(server.app)(scope, receive, send)

    async with uvicorn_with(app) as listening:
        server = Server(fleet, listening)
        try:
            yield server  # without a bound but the test's own: a slow machine may take long to pass 16 MB
        finally:
            for writer in server.clients:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()


async def test_most_events_take_the_fast_path(fleet: Fleet) -> None:
    engine = CountingEngine(until=1)
    await fleet.start(engine)
    async with serving(fleet) as server:
        client = await server.connect()
        await client.head()
        received = [await client.chunk()]
        for _ in range(1, TOKENS):
            engine.go_on(1)
            received.append(await client.chunk())
        assert await client.chunk() == b""
        await server.ended.wait()

    last = frame(TOKENS - 1) + DONE  # the engine's last step made both
    assert received == [*(frame(token) for token in range(TOKENS - 1)), last]
    assert server.sent == [frame(0), last]
    assert server.requests[0].outcome == "ok"
    assert server.requests[0].write_now is None


async def test_a_draining_replicas_stream_still_moves(fleet: Fleet) -> None:
    first, second = CountingEngine(until=1), CountingEngine()
    await fleet.start(first)
    async with serving(fleet) as server:
        client = await server.connect()
        await client.head()
        text = await client.chunk()
        first.go_on(1)
        text += await client.chunk()
        await fleet.start(second)
        fleet.stop("r1")
        first.go_on(1)
        text += await client.rest()

    assert without_comments(text) == (WHOLE, 1)


async def test_an_error_event_on_the_fast_path_is_the_outcome(fleet: Fleet) -> None:
    more = asyncio.Event()

    async def stream() -> AsyncIterator[bytes]:
        yield frame(0)
        await more.wait()
        yield ERROR
        await asyncio.sleep(0.05)  # its own message, whatever the order of the tasks
        yield DONE

    await fleet.start(StubEngine(stream))
    async with serving(fleet) as server:
        client = await server.connect()
        await client.head()
        await client.chunk()
        more.set()
        assert await client.rest() == ERROR + DONE
        await server.ended.wait()

    assert ERROR not in server.sent
    assert server.requests[0].outcome == "error"
