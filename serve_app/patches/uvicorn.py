"""Changes to uvicorn: a Unix socket beside the port of a server, and bodies of requests with `Upgrade`."""

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Any

import httptools
import uvicorn
from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

logger = logging.getLogger("ray.serve")


def listen_beside(path: Path) -> None:
    """Have the uvicorn servers that start in this process listen on a Unix socket at `path`, too.

    Ray gives no access to its server, so the class is changed. The socket belongs to the server: when Ray
    stops the server, the socket closes like the port.
    """
    start = uvicorn.Server.startup

    async def start_both(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        await start(server, sockets)
        if server.config.is_ssl:
            return  # HAProxy would speak TLS on the socket, as on the port
        try:
            server.servers.append(await _listen(server, path))
        except OSError as error:
            logger.warning("HAProxy reaches this replica by its port only; no socket at %s: %s", path, error)

    uvicorn.Server.startup = start_both  # type: ignore[method-assign, assignment]


async def _listen(server: uvicorn.Server, path: Path) -> asyncio.Server:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # HAProxy may start later
    config = server.config
    listener = await asyncio.get_running_loop().create_unix_server(
        lambda: config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=server.server_state, app_state=server.lifespan.state
        ),
        path=str(path),
        backlog=config.backlog,
    )
    os.chmod(path, 0o600)
    return listener


def ignore_upgrades() -> None:
    """Have the uvicorn servers that start in this process use `HttpProtocol`. Ray gives no access to them."""
    HTTP_PROTOCOLS["auto"] = f"{__name__}:{HttpProtocol.__name__}"


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which serves a request to upgrade to another protocol as if it had no `Upgrade`.

    For the parser such a request ends with its head, and uvicorn drops the bytes after it. So the body would
    be lost. Java's HTTP client sends `Upgrade: h2c` with a body, and `curl --http2` does. Tideserve has no
    WebSockets. uvicorn would pass a POST with `Upgrade: websocket` to a protocol that does not answer it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread = b""
        self._renew_parser()

    def _renew_parser(self) -> None:
        self.parser = _Parser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        while unread := self._unread:  # no recursion: the data may have thousands of such requests
            self._unread = b""
            super().data_received(unread)

    def ignores_upgrade(self) -> bool:
        """Whether the request whose headers have come asks for another protocol."""
        return self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)

    def on_headers_complete(self) -> None:
        if not self.ignores_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.ignores_upgrade():
            super().on_message_complete()

    def begin_again(self, rest: bytes) -> None:
        """Have a new parser read the head without `Upgrade`, and then the `rest` of the data."""
        parts = [self.parser.get_method(), b" ", self.url, b" HTTP/", self.parser.get_http_version().encode()]
        for name, value in self.headers:
            if name != b"upgrade":
                parts += [b"\r\n", name, b": ", value]
        self._unread = b"".join([*parts, b"\r\n\r\n", rest])
        self._renew_parser()


class _Parser(httptools.HttpRequestParser):
    def __init__(self, protocol: HttpProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._protocol.ignores_upgrade():
                raise
            self._protocol.begin_again(data[upgrade.args[0] :])
