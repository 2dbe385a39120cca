"""An HTTP response that runs an engine call, and ends it the moment its client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serve_app.api.client import JSON, EngineClient, EngineReply, EngineRequest
from serve_app.api.errors import ApiError

logger = logging.getLogger("ray.serve")

STREAM_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # nginx and its kin would hold tokens back
}


class EngineResponse(Response):
    """Streams or sends what an engine answers to `request`.

    Args:
        client: The engines of the model asked for.
        request: What to run.
        on_first_byte: Called once when the first byte of a stream has been handed over.
    """

    def __init__(
        self,
        client: EngineClient,
        request: EngineRequest,
        on_first_byte: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._client = client
        self._request = request
        self._on_first_byte = on_first_byte

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, or stop working on it when the client leaves first."""
        answer = asyncio.ensure_future(self._answer(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Cancelling the answer closes the call, which aborts its sequences in the engine.
            for task in (answer, leaving):
                task.cancel()
            outcomes = await asyncio.gather(answer, leaving, return_exceptions=True)
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def _answer(self, send: Send) -> None:
        try:
            async with self._client.call(self._request) as reply:
                if reply.stream is None:
                    await _send_whole(send, reply.status, reply.body, reply.headers)
                else:
                    await self._send_stream(send, reply)
        except ApiError as error:
            await _send_whole(send, error.status, error.body(), error.headers)

    async def _send_stream(self, send: Send, reply: EngineReply) -> None:
        assert reply.stream is not None
        headers = {"Content-Type": f"{reply.content_type}; charset=utf-8", **STREAM_HEADERS, **reply.headers}
        await send({"type": "http.response.start", "status": reply.status, "headers": _raw(headers)})
        try:
            first = True
            async for chunk in reply.stream:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                if first:
                    first = False
                    self._on_first_byte()
        except Exception:
            # The status is out; a stream that just stopped would look complete to many clients.
            logger.exception("request %s: failed within its stream", self._request.request_id)
            failure = ApiError(500, "The server failed while streaming this answer.", code="stream_failed")
            await send({"type": "http.response.body", "body": failure.last_frames(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_whole(send: Send, status: int, body: bytes, extra: Mapping[str, str]) -> None:
    headers = {"Content-Type": JSON, "Content-Length": str(len(body)), **extra}
    await send({"type": "http.response.start", "status": status, "headers": _raw(headers)})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
