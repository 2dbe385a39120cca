"""The endpoint of an engine's operations: one HTTP request of the ingress, and its answer."""

import hmac
import secrets

from aiohttp import web

from serve_app.api.engine_client import JSON, OPERATIONS, EngineClient, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.wire.data_plane_headers import HELD_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER, WAITED_HEADER


class OperationEndpoint:
    """Runs the operations of `engine` for callers that carry `token`, and counts the open ones."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self.token = secrets.token_hex(32)
        self.open_requests = 0

    def refusal(self, request: web.Request) -> web.Response | None:
        """The answer to a caller without the token; None for one that has it."""
        given = request.headers.get(TOKEN_HEADER, "").encode("utf-8", "surrogateescape")
        if hmac.compare_digest(given, self.token.encode()):
            return None
        return web.Response(status=403, text="the data-plane token is missing or wrong\n")

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /{operation}`: with JSON, or with a stream of SSE frames."""
        if (refusal := self.refusal(request)) is not None:
            return refusal
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
