"""The port that an engine replica opens for ingress replicas only.

Ray's handles cost 0.1 to 0.65 ms per item, and a token stream has many items. So the ingress picks a replica
from Ray's list of replicas, and all streams between an ingress and an engine replica share one connection.
The port is bound to the node's address and refuses callers without the replica's token. Only Ray's control
plane distributes this token (`record_replica_metadata`).
"""

import asyncio
import hmac
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable

import msgspec

from serve_app.api.engine_client import EngineClient
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.ingress_calls import IngressCalls
from serve_app.wire.data_plane import (
    BEAT_S,
    HELLO_BYTES,
    HELLO_S,
    MOST_BLOCKS,
    MOST_BYTES,
    MOST_STRANGERS,
    VERSION,
    Beat,
    Call,
    Cancel,
    Credit,
    FromIngress,
    Hello,
    Prefix,
    Refusal,
)
from serve_app.wire.frames import Frames
from serve_app.wire.tls import server_tls

logger = logging.getLogger("ray.serve")

_REFUSALS_LOGGED_S = 10.0
"""The interval between two log lines about refused callers, so that a caller cannot fill the log."""
# An ingress that has not heard of the drain may still send a request. The drain ends after 0.5 s without one.
_DRAIN_CHECK_S = 0.1
_QUIET_CHECKS = 5


class DataPlane:
    """Serves an engine's operations on its own port, by the protocol in `serve_app.wire.data_plane`.

    Args:
        engine: Runs the operations.
        heartbeat: Returns a heartbeat as of now, without prefixes. Every ingress replica gets it twice a
            second.
    """

    def __init__(
        self, engine: EngineClient[EngineCall], heartbeat: Callable[[], Beat] = lambda: Beat("")
    ) -> None:
        self.engine = engine
        self.heartbeat = heartbeat
        self._server: asyncio.Server | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._connections: dict[IngressConnection, None] = {}
        self._strangers: dict[IngressConnection, asyncio.TimerHandle] = {}
        """The connections that have not sent the token yet, oldest first, each with its cut-off timer."""
        self._refused = 0
        """Callers refused since the last log line."""
        self._logs_again_at = 0.0
        self.token = secrets.token_hex(32)
        self.address = ""

    @property
    def open_requests(self) -> int:
        """Calls that have not ended."""
        return sum(len(connection.calls) for connection in self._connections)

    @property
    def open_background_requests(self) -> int:
        """The calls of the lane `background` that have not ended."""
        return sum(connection.calls.background for connection in self._connections)

    async def start(self, host: str) -> None:
        """Listen on a free port of `host`. Sets `address` to `host:port`.

        Raises:
            OSError: the port cannot be opened, or Ray's TLS files are not usable.
        """
        loop = asyncio.get_running_loop()
        tls = server_tls(os.environ)
        limit_s = None if tls is None else HELLO_S
        self._server = await loop.create_server(
            lambda: IngressConnection(self).frames,
            host,
            0,
            ssl=tls,
            ssl_handshake_timeout=limit_s,
            ssl_shutdown_timeout=limit_s,
        )
        self._heartbeats = asyncio.create_task(self._send_heartbeats())
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def drain(self) -> None:
        """Wait until no call is open. Ray has already informed the ingress. Late requests are served.

        Ray bounds the wait: it ends the replica after `graceful_shutdown_timeout_s`.
        """
        quiet = 0
        while quiet < _QUIET_CHECKS:
            quiet = 0 if self.open_requests else quiet + 1
            await asyncio.sleep(_DRAIN_CHECK_S)

    async def stop(self) -> None:
        """Close the port and its connections, and wait until their calls have ended."""
        if self._server is not None and self._heartbeats is not None:
            self._heartbeats.cancel()
            self._server.close()
        for connection in list(self._connections):
            await connection.calls.stop()

    def admit_stranger(self, connection: "IngressConnection") -> None:
        """Take a connection that has not sent the token. Bounds the time and the number without a token."""
        self._connections[connection] = None
        late = f"no data-plane token within {HELLO_S:g} s"
        timer = asyncio.get_running_loop().call_later(HELLO_S, connection.cut_off, late)
        self._strangers[connection] = timer
        if len(self._strangers) > MOST_STRANGERS:
            # Close the oldest. An ingress sends the token at once, so strangers cannot keep it out.
            oldest = next(iter(self._strangers))
            self.trust(oldest)
            oldest.cut_off(f"more than {MOST_STRANGERS} connections without the data-plane token")

    def trust(self, connection: "IngressConnection") -> None:
        """End the bounds of a connection without a token."""
        if (timer := self._strangers.pop(connection, None)) is not None:
            timer.cancel()

    def forget(self, connection: "IngressConnection") -> None:
        self.trust(connection)
        self._connections.pop(connection, None)

    def log_refusal(self, peer: str, reason: str) -> None:
        """Log that a caller without the token was refused, at most every 10 s."""
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._logs_again_at:
            logger.warning(
                "data plane: refused a caller from %s: %s (%d refused since the last such line)",
                peer,
                reason,
                self._refused,
            )
            self._refused, self._logs_again_at = 0, now + _REFUSALS_LOGGED_S

    def share_prefix(self, source: "IngressConnection", prefix: Prefix) -> None:
        """Report the prefix of a prompt from one ingress replica to the others."""
        for connection in self._connections:
            if connection is not source:
                connection.note(prefix)

    async def _send_heartbeats(self) -> None:
        while True:
            beat = self.heartbeat()
            for connection in self._connections:
                connection.send_heartbeat(beat)
            await asyncio.sleep(BEAT_S)


class IngressConnection:
    """One ingress replica's connection: the token first, then calls, and heartbeats the other way."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.frames: Frames[FromIngress] = Frames(FromIngress, self._take, self._handle_loss)
        self.frames.most_bytes = HELLO_BYTES
        # Registered only when connected, because a failed TLS handshake calls nothing.
        self.frames.on_connected = lambda: plane.admit_stranger(self)
        self.calls = IngressCalls(plane.engine, self.frames)
        self._known = False
        """Whether the caller has sent the token."""
        self._of_others: deque[Prefix] = deque()
        self._blocks = 0
        """Blocks of the prefixes that other ingress replicas have sent since the last heartbeat."""

    def note(self, prefix: Prefix) -> None:
        """Keep a prefix from another ingress replica for the next heartbeat."""
        self._of_others.append(prefix)
        self._blocks += len(prefix.blocks) + 1
        while self._blocks > MOST_BLOCKS:
            self._blocks -= len(self._of_others.popleft().blocks) + 1

    def send_heartbeat(self, beat: Beat) -> None:
        """Send a heartbeat, with the prefixes since the last one if the ingress reads."""
        if self._known:
            noted = list(self._of_others) if self.frames.writable else []
            self.frames.send(msgspec.structs.replace(beat, prefixes=noted))
        self._of_others.clear()
        self._blocks = 0

    def _take(self, message: FromIngress) -> None:
        if not self._known:
            self._meet(message)
        elif isinstance(message, Credit):
            self.calls.add_credit(message.stream, message.amount)
        elif isinstance(message, Call):
            if message.prefix is not None:
                self._plane.share_prefix(self, message.prefix)
            self.calls.begin(message)
        elif isinstance(message, Cancel):
            self.calls.cancel(message.stream)

    def _meet(self, message: FromIngress) -> None:
        if not isinstance(message, Hello) or message.version != VERSION:
            self._refuse(f"this engine replica speaks version {VERSION} of the data plane")
        elif not hmac.compare_digest(
            message.token.encode("utf-8", "surrogateescape"), self._plane.token.encode()
        ):
            self._refuse("the data-plane token is missing or wrong")
        else:
            self._known = True
            self.frames.most_bytes = MOST_BYTES
            self._plane.trust(self)
            # Without adapters: a thousand names are longer than a greeting may be.
            self.frames.send(msgspec.structs.replace(self._plane.heartbeat(), adapters=[]))

    def _refuse(self, reason: str) -> None:
        self._plane.log_refusal(self.frames.peer, reason)
        self.frames.send(Refusal(reason))
        self.frames.close()

    def cut_off(self, reason: str) -> None:
        """End the connection of a caller without the token, even if it has unsent data."""
        self._refuse(reason)
        self.frames.abort()

    def _handle_loss(self, error: Exception) -> None:
        if not self._known and self.frames.fault is not None:
            self._plane.log_refusal(self.frames.peer, str(error))
        self.calls.cancel_all()
        self._plane.forget(self)
