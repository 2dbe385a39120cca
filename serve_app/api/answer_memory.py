"""Count answers that their clients have not read yet."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.body import BodyMemory, BodyShare
from serve_app.api.dialect import error_response
from serve_app.api.errors import ApiError
from serve_app.api.middleware import route_path

LEAST_BYTES = 1 << 16
"""Smaller answers are not counted. uvicorn keeps so many unread bytes of any connection."""


class AnswerMemoryMiddleware:
    """Counts large whole answers until they are read, and sends 429 if unread answers fill the memory.

    `request.state.count_answer` counts the bytes of a streamed answer until its end. It raises ApiError 429.

    Args:
        memory: An account of its own: bodies that wait must not keep computed answers from their clients.
    """

    def __init__(self, app: ASGIApp, memory: BodyMemory) -> None:
        self._app = app
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        key = scope["state"].get("key")
        share = BodyShare(self._memory, "answers" if key is None else f"API key {key.name!r}")
        start: Message | None = None
        refused = False

        def count(size: int) -> None:
            share.grow(min(size, self._memory.limit_bytes // 2))  # the largest fits if it is the only one

        async def counted(message: Message) -> None:
            nonlocal start, refused
            if message["type"] == "http.response.start":
                start = message  # until it is known whether the answer fits
            if refused or message is start:
                return
            head, start, size = start, None, len(message.get("body", b""))
            whole = head is not None and not message.get("more_body") and size > LEAST_BYTES
            if whole:
                try:
                    count(size)
                except ApiError as error:
                    refused = True
                    await error_response(error, scope, route_path(scope))(scope, receive, send)
                    raise
            if head is not None:
                await send(head)
            if whole:  # uvicorn takes the body at once, and the next message when most of it is read
                await send({**message, "more_body": True})
                message = {**message, "body": b""}
            await send(message)

        scope["state"]["count_answer"] = count
        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not refused:
                raise
        finally:
            share.release()
