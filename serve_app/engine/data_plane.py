"""The HTTP port that an engine replica opens for the ingress only.

Ray's handles cost 0.1 to 0.65 ms for each item; a token stream is mostly items. So the ingress picks a
replica from what Ray pushes to it, and the bytes come over one HTTP connection. The port is bound to
the node's address and refuses callers that do not carry the replica's token, which only Ray's control
plane hands out (`record_replica_metadata`).
"""

import asyncio
import hmac
import secrets
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from serve_app.api.engine_client import JSON, OPERATIONS, EngineClient, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.wire.data_plane_headers import (
    ALIVE,
    HEARTBEAT_INTERVAL_S,
    HEARTBEATS,
    HELD_HEADER,
    REQUEST_ID_HEADER,
    TOKEN_HEADER,
    WAITED_HEADER,
)

# An ingress that has not heard yet may still send a request: half a second without one is the end.
_DRAIN_CHECK_S = 0.1
_QUIET_CHECKS = 5


class DataPlane:
    """Serves an engine's operations over HTTP/1.1 on a port of its own.

    Args:
        engine: The engine.
        trouble: Returns why the engine cannot take requests now, or "" if it can. It is sent twice a second
            to every ingress replica that listens to the heartbeats.
    """

    def __init__(self, engine: EngineClient, trouble: Callable[[], str] = lambda: "") -> None:
        self._engine = engine
        self._trouble = trouble
        self._stopping = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.token = secrets.token_hex(32)
        self.address = ""
        self.open_requests = 0

    async def start(self, host: str) -> None:
        """Listen on a free port of `host`. Sets `address` to `host:port`."""
        app = web.Application(client_max_size=0)  # bodies are read whole below; the ingress bounds them
        app.router.add_get(HEARTBEATS, self._heartbeats)
        app.router.add_post("/{operation}", self._serve)
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

    def _knows_token(self, request: web.Request) -> bool:
        given = request.headers.get(TOKEN_HEADER, "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self.token.encode())

    async def _heartbeats(self, request: web.Request) -> web.StreamResponse:
        """Send a line twice a second. Silence means that this process stands still."""
        if not self._knows_token(request):
            return web.Response(status=403, text="the data-plane token is missing or wrong\n")
        response = web.StreamResponse()
        await response.prepare(request)
        while not self._stopping.is_set():
            await response.write(f"{self._trouble() or ALIVE}\n".encode())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), HEARTBEAT_INTERVAL_S)
        return response

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if not self._knows_token(request):
            return web.Response(status=403, text="the data-plane token is missing or wrong\n")
        operation = request.match_info["operation"]
        if operation not in OPERATIONS:
            return web.Response(status=404, text=f"no operation {operation!r}\n")
        call = EngineRequest.handed_over(
            operation,
            await request.content.read(),
            request.headers.get(REQUEST_ID_HEADER, ""),
            float(request.headers.get(WAITED_HEADER, "0")),
            float(request.headers.get(HELD_HEADER, "0")),
        )
        self.open_requests += 1
        try:
            return await self._answer(request, call)
        except ApiError as error:
            return web.Response(
                status=error.status, body=error.body(), content_type=JSON, headers=error.headers
            )
        finally:
            self.open_requests -= 1

    async def _answer(self, request: web.Request, call: EngineRequest) -> web.StreamResponse:
        async with self._engine.call(call) as reply:
            if reply.stream is None:
                return web.Response(
                    status=reply.status, body=reply.body, content_type=JSON, headers=reply.headers
                )
            response = web.StreamResponse(status=reply.status, headers=reply.headers)
            response.content_type = reply.content_type
            await response.prepare(request)
            async for chunk in reply.stream:
                await response.write(chunk)
            await response.write_eof()
            return response
