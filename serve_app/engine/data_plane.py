"""The HTTP port that an engine replica opens for the ingress only.

Ray's handles cost 0.1 to 0.65 ms for each item; a token stream is mostly items. So the ingress picks a
replica from what Ray pushes to it, and the bytes come over one HTTP connection. The port is bound to
the node's address and refuses callers that do not carry the replica's token, which only Ray's control
plane hands out (`record_replica_metadata`).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from serve_app.api.engine_client import EngineClient
from serve_app.engine.operation_endpoint import OperationEndpoint
from serve_app.wire.data_plane_headers import ALIVE, HEARTBEAT_INTERVAL_S, HEARTBEATS

# An ingress that has not heard yet may still send a request: half a second without one is the end.
_DRAIN_CHECK_S = 0.1
_QUIET_CHECKS = 5


class DataPlane(OperationEndpoint):
    """Serves an engine's operations over HTTP/1.1 on a port of its own.

    Args:
        trouble: Returns why the engine cannot take requests now, or "" if it can. It is sent twice a second
            to every ingress replica that listens to the heartbeats.
    """

    def __init__(self, engine: EngineClient, trouble: Callable[[], str] = lambda: "") -> None:
        super().__init__(engine)
        self._trouble = trouble
        self._stopping = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.address = ""

    async def start(self, host: str) -> None:
        """Listen on a free port of `host`. Sets `address` to `host:port`."""
        app = web.Application(client_max_size=0)  # bodies are read whole below; the ingress bounds them
        app.router.add_get(HEARTBEATS, self._heartbeats)
        app.router.add_post("/{operation}", self.serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def drain(self) -> None:
        """Wait until nothing is open. Ray has told the ingress already; stragglers are let in.

        Bounded by the caller: Ray ends the replica after its `graceful_shutdown_timeout_s`.
        """
        quiet = 0
        while quiet < _QUIET_CHECKS:
            quiet = 0 if self.open_requests else quiet + 1
            await asyncio.sleep(_DRAIN_CHECK_S)

    async def stop(self) -> None:
        """Close the port and whatever is still open on it."""
        self._stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _heartbeats(self, request: web.Request) -> web.StreamResponse:
        """Send a line twice a second. Silence means that this process stands still."""
        if (refusal := self.refusal(request)) is not None:
            return refusal
        response = web.StreamResponse()
        await response.prepare(request)
        while not self._stopping.is_set():
            await response.write(f"{self._trouble() or ALIVE}\n".encode())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), HEARTBEAT_INTERVAL_S)
        return response
