"""Clients that do not read their answers, on real connections."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from serve_app.api.engine_response import WriteNowMiddleware
from tests.http_server import port_of, uvicorn_with


class SlowClient:
    """A connection with one request, which reads only so much of the answer as a test says."""

    def __init__(self, port: int, path: str, body: bytes = b"", method: str = "POST", key: str = "k") -> None:
        self._port = port
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        head += [f"Authorization: Bearer {key}", f"Content-Length: {len(body)}", "Connection: close", "", ""]
        self._request = "\r\n".join(head).encode() + body
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self._socket.setblocking(False)

    async def status(self) -> int:
        """Send the request, and read only the first bytes of the answer."""
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        await loop.sock_sendall(self._socket, self._request)
        return int((await loop.sock_recv(self._socket, 12))[9:])

    async def rest(self) -> bytes:
        """Read the rest of the answer."""
        data = bytearray()
        while part := await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20):
            data += part
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    """The port of uvicorn with the application, as Ray Serve runs it."""
    async with uvicorn_with(WriteNowMiddleware(app)) as running:
        yield port_of(running)
