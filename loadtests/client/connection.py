"""The HTTP connections of a client process, and when bytes arrived on them.

aiohttp wakes a task for each read. The task would look at the clock when its turn comes, which is after all
bytes that arrived in the same iteration of the loop: the tokens of one engine step. So a tap stands before
aiohttp's protocol of each connection. It takes the time, lets aiohttp decode, and passes the result on. That
also spares the task a wake-up per token.
"""

import asyncio
import resource
import time
from collections.abc import Callable

import aiohttp
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from loadtests.client.prompts import Target
from loadtests.client.sse import Scanner
from serve_app.cli.http_client import error_words, proxy_for


class Tap(asyncio.Protocol):
    """Passes everything on to the protocol behind it, and then calls `sink` with the time of arrival."""

    __slots__ = ("_behind", "arrived_s", "sink")

    def __init__(self, behind: asyncio.Protocol) -> None:
        self._behind = behind
        self.arrived_s = 0.0
        """When bytes last arrived, `time.monotonic`."""
        self.sink: Callable[[float, bool], None] | None = None
        """Called with the time, and whether the connection is lost."""

    def data_received(self, data: bytes) -> None:
        now = self.arrived_s = time.monotonic()
        self._behind.data_received(data)
        if self.sink is not None:
            self.sink(now, False)

    def eof_received(self) -> bool | None:
        return self._behind.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        now = self.arrived_s = time.monotonic()
        self._behind.connection_lost(exc)
        if self.sink is not None:
            self.sink(now, True)

    def pause_writing(self) -> None:
        self._behind.pause_writing()

    def resume_writing(self) -> None:
        self._behind.resume_writing()


class TappedConnector(aiohttp.TCPConnector):
    """Connections with a tap."""

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        transport, protocol = connection.transport, connection.protocol
        if transport is not None and protocol is not None:
            transport.set_protocol(Tap(protocol))
        return connection


class Stream:
    """The body of one answer, which is fed to a scanner."""

    __slots__ = ("_content", "_enough", "_over", "_scanner", "_tap", "content_type", "cut")

    def __init__(self, response: aiohttp.ClientResponse, scanner: Scanner, enough: int | None) -> None:
        """The wait ends with `enough` pieces, or with the answer."""
        self._content, self._scanner, self._enough = response.content, scanner, enough
        self._over: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.content_type = response.content_type
        """As the headers say."""
        self.cut: Exception | None = None
        """The error that broke the connection."""
        self._tap = tap_of(response)
        if self._tap is None:  # All of it came at once: its connection is free again, or lost.
            self._received(time.monotonic(), True)
        else:
            self._received(self._tap.arrived_s, False)
            if not self._over.done():
                self._tap.sink = self._received

    async def over(self) -> float:
        """Wait for the end, an error, a cut, or enough pieces. Returns when that came, `time.monotonic`."""
        return await self._over

    def leave(self) -> None:
        """Read no more."""
        if self._tap is not None and not self._over.done():
            self._tap.sink = None

    def _received(self, now: float, lost: bool) -> None:
        if self._over.done():
            return
        try:
            data = self._content.read_nowait()
        except (aiohttp.ClientError, OSError) as error:
            self.cut = error
        else:
            if data:
                self._scanner.feed(data, now)
        if lost and self.cut is None and not self._content.is_eof():
            # aiohttp leaves a body open if the next bytes are not HTTP, and closes the connection.
            self.cut = ConnectionError("the bytes were not HTTP")
        enough = self._enough is not None and len(self._scanner.pieces) >= self._enough
        if self._scanner.over_s is not None or enough or self.cut is not None or self._content.is_eof():
            # Before the task wakes: by then another request may have the connection.
            self.leave()
            self._over.set_result(now)


def tap_of(response: aiohttp.ClientResponse) -> Tap | None:
    """The tap of its connection; None if it has given that back."""
    transport = response.connection.transport if response.connection is not None else None
    if transport is None:
        return None
    protocol = transport.get_protocol()
    return protocol if isinstance(protocol, Tap) else None


_KEEP_ALIVE_S = 3.0
"""Idle connections are reused for so long: less than any common server keeps them (uvicorn: 5 s), since a
request on a connection that is just being closed fails."""
_DNS_S = 300.0
_OPEN_FILES = 2**20
"""The limit to ask for where the system sets none."""


def allow_many_connections() -> int:
    """Raise the soft limit of open files to the hard one, and return it. Each stream needs a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def open_session(target: Target) -> aiohttp.ClientSession:
    """Without limits of its own on connections, and without timeouts: requests have their own."""
    headers = {
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",  # A compressed stream would arrive in blocks.
        "Content-Type": "application/json",
        "User-Agent": "tideserve-loadtest",
        **target.headers,
    }
    return aiohttp.ClientSession(
        connector=TappedConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=int(_DNS_S)),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        proxy=proxy_for(target.url),
    )


_REFUSAL_BYTES = 64 * 2**10


async def refusal_words(response: aiohttp.ClientResponse) -> str:
    """The body of an error response in words, with its status. Gives the connection back."""
    data = b""
    while len(data) < _REFUSAL_BYTES and (block := await response.content.readany()):
        data += block
    if not response.content.at_eof():
        response.close()
    words = error_words(data)
    location = response.headers.get("Location")
    if location is not None:
        words = f"redirected to {location}"
    return f"HTTP {response.status}: {words or response.reason or 'without a body'}"


def failure_words(error: Exception) -> str:
    """Why no answer came, or why it broke off."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {error}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection before it answered"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
