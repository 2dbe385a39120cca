"""The port that an engine replica opens for ingress replicas only.

Ray's handles cost 0.1 to 0.65 ms per item, and a token stream has many items. So the ingress picks a replica
from Ray's list of replicas, and all streams between an ingress and an engine replica share one connection.
The port is bound to the node's address and refuses callers without the replica's token. Only Ray's control
plane distributes this token (`record_replica_metadata`).
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from functools import partial

from serve_app.api.engine_client import EngineClient
from serve_app.engine.ingress_connection import IngressConnection
from serve_app.wire.data_plane import BEAT_S, HELLO_S, MOST_STRANGERS, Beat, Prefix
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
        trouble: Returns why the engine cannot take requests now, or "" if it can. Every ingress replica gets
            this text twice a second.
        still_s: Returns the seconds without an engine step, if that is the trouble.
        prefix_cache_tokens: Size of the engine's prefix cache: 0 without a cache, None if unknown.
        step_tokens: Maximum tokens of one engine step; None if unknown.
    """

    def __init__(
        self,
        engine: EngineClient,
        trouble: Callable[[], str] = lambda: "",
        still_s: Callable[[], float] = lambda: 0.0,
        prefix_cache_tokens: int | None = None,
        step_tokens: int | None = None,
    ) -> None:
        self._engine = engine
        self._trouble = trouble
        self._still_s = still_s
        self._prefix_cache_tokens = prefix_cache_tokens
        self._step_tokens = step_tokens
        self._server: asyncio.Server | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._connections: set[IngressConnection] = set()
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
        return sum(len(connection.streams) for connection in self._connections)

    async def start(self, host: str) -> None:
        """Listen on a free port of `host`. Sets `address` to `host:port`.

        Raises:
            OSError: the port cannot be opened, or Ray's TLS files are not usable.
        """
        loop = asyncio.get_running_loop()
        tls = server_tls(os.environ)
        limit_s = None if tls is None else HELLO_S
        self._server = await loop.create_server(
            self._connection, host, 0, ssl=tls, ssl_handshake_timeout=limit_s, ssl_shutdown_timeout=limit_s
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
            await connection.stop()

    def _connection(self) -> asyncio.Protocol:
        connection = IngressConnection(
            self._engine,
            self.token,
            self._heartbeat_now,
            self._forget,
            self._share_prefix,
            self._meet,
            self._log_refusal,
        )
        # Registered only when connected, because a failed TLS handshake calls nothing.
        connection.frames.on_connected = partial(self._connected, connection)
        return connection.frames

    def _connected(self, connection: IngressConnection) -> None:
        """Bound the time and the number of connections without the token."""
        self._connections.add(connection)
        late = f"no data-plane token within {HELLO_S:g} s"
        timer = asyncio.get_running_loop().call_later(HELLO_S, connection.cut_off, late)
        self._strangers[connection] = timer
        if len(self._strangers) > MOST_STRANGERS:
            # Close the oldest. An ingress sends the token at once, so strangers cannot keep it out.
            oldest = next(iter(self._strangers))
            self._meet(oldest)
            oldest.cut_off(f"more than {MOST_STRANGERS} connections without the data-plane token")

    def _meet(self, connection: IngressConnection) -> None:
        if (timer := self._strangers.pop(connection, None)) is not None:
            timer.cancel()

    def _forget(self, connection: IngressConnection) -> None:
        self._meet(connection)
        self._connections.discard(connection)

    def _log_refusal(self, peer: str, reason: str) -> None:
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

    def _share_prefix(self, source: IngressConnection, prefix: Prefix) -> None:
        for connection in self._connections:
            if connection is not source:
                connection.note(prefix)

    def _heartbeat_now(self) -> Beat:
        return Beat(
            self._trouble(), self._still_s(), self._prefix_cache_tokens, step_tokens=self._step_tokens
        )

    async def _send_heartbeats(self) -> None:
        while True:
            beat = self._heartbeat_now()
            for connection in self._connections:
                connection.send_heartbeat(beat)
            await asyncio.sleep(BEAT_S)
