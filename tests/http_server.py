"""HTTP servers in this process, for clients that want a real one."""

import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import uvicorn
from starlette.types import ASGIApp

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Callable[[str, str, bytes], Answer], keys: list[str | None]) -> None:
        self.answer, self.keys = answer, keys
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _handle(self) -> None:
        self.server.keys.append(self.headers["Authorization"])
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, reply, *headers = self.server.answer(self.command, self.path, body)
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        for name, value in headers[0].items() if headers else ():
            self.send_header(name, value)
        if data is not reply:
            self.send_header("Content-Type", "application/json")
        if 300 <= status < 400:
            self.send_header("Location", str(reply))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = _handle  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(
    answer: Callable[[str, str, bytes], Answer], keys: list[str | None] | None = None
) -> Iterator[str]:
    """The URL of a server that answers (method, path, body) with (status, JSON or bytes[, headers]).

    It appends the `Authorization` of each request to `keys`, and redirects to the body of a 3xx.
    """
    with _Server(answer, [] if keys is None else keys) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent_server() -> Iterator[str]:
    """The URL of a server that accepts connections and says nothing. At the end it closes them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@asynccontextmanager
async def uvicorn_with(app: ASGIApp) -> AsyncIterator[uvicorn.Server]:
    """uvicorn with `app`, as Ray Serve starts it: on the event loop that is there."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_config=None, ws="none")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server
    finally:
        await server.shutdown()


def port_of(server: uvicorn.Server) -> int:
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port
