"""The memory for bodies until their requests have an answer, and for answers until clients read them."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.dialect import error_response
from serve_app.api.errors import ApiError

_UNREAD = "other requests that are being read"
KEPT = "streams that another replica can go on with"
BACKGROUND = "requests of the lane background"
LEAST_BYTES = 1 << 16
"""Smaller answers are not counted. uvicorn keeps so many unread bytes of any connection."""


class BodyMemory:
    """Counts the bytes of bodies until their requests have an answer, and bytes kept to continue streams.

    Together they may take `limit_bytes`. One group of requests may take half, so that the other half stays
    free for other groups. A request belongs to the group of its model and, if keys are required, to the group
    of its API key. Without a key, it belongs to the group of unread requests until its model is known. The
    memory kept of streams is also a group. So are requests of the lane `background`, which may take a
    quarter: they wait for hours, and must leave room for other requests of their model. Use it in one event
    loop.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.by_group: dict[str, int] = {}


class BodyShare:
    """The bytes of one request's body, or the bytes kept of its stream. Call `release` in the end.

    Args:
        group: The request's API key if keys are required, or `KEPT`.
    """

    def __init__(self, memory: BodyMemory, group: str | None) -> None:
        self._memory = memory
        self._groups = [_UNREAD if group is None else group]
        self._bytes = 0

    def expect(self, length: int) -> None:
        """Refuse a body of `length` bytes that does not fit now, before it is read.

        Nothing is reserved: a client that declares a large body and sends nothing must not block others.

        Raises:
            ApiError: 429, or 413 if it can never fit.
        """
        self._check(self._groups, length, length)

    def grow(self, more: int) -> None:
        """Take `more` bytes. If they do not fit, take none and raise ApiError as `expect`."""
        self._check(self._groups, more, more)
        self._count(self._groups, more)
        self._memory.used_bytes += more
        self._bytes += more

    def belongs_to(self, model: str, *, background: bool = False, lowered: bool = False) -> None:
        """Count a body that is read for its model and lane. Raises ApiError as `expect`.

        `lowered` means that the lane is `background` only for now, because the key is above a rate.
        """
        groups = [f"model {model!r}", *([BACKGROUND] if background else [])]
        self._check(groups, self._bytes, 0, lowered=lowered)
        if _UNREAD in self._groups:
            self._count([_UNREAD], -self._bytes)
            self._groups.remove(_UNREAD)
        self._count(groups, self._bytes)
        self._groups += groups

    def release(self) -> None:
        """Give all bytes back. A second call does nothing."""
        if not self._bytes:
            return
        self._count(self._groups, -self._bytes)
        self._memory.used_bytes -= self._bytes
        self._bytes = 0

    def __del__(self) -> None:
        # A response that is dropped before it is sent must give its bytes back.
        self.release()

    def _count(self, groups: list[str], more: int) -> None:
        by_group = self._memory.by_group
        for group in groups:
            # The collector may release another share of the group at any allocation. A `Counter` allocates
            # within `del`, which then found no such group: a request failed, and kept its bytes for ever.
            by_group[group] = by_group.get(group, 0) + more
            if not by_group[group]:
                del by_group[group]

    def _check(self, groups: list[str], more: int, uncounted: int, *, lowered: bool = False) -> None:
        """Raise ApiError 429 if `more` bytes exceed a group's share, or `uncounted` of them the memory.

        It is 413 if even an empty memory could not take the body: no client should send it again.
        """
        memory, whole = self._memory, self._bytes + uncounted
        full = memory.used_bytes + uncounted > memory.limit_bytes
        for group in groups:
            of_group = memory.by_group.get(group, 0)
            share, part = (4, "a quarter") if group == BACKGROUND else (2, "half")
            if share * whole > memory.limit_bytes and not lowered:
                bound = f"{memory.limit_bytes // share}, {part} of http.max_body_memory_bytes"
                message = f"The body has {whole} bytes; {group} may have {bound} = {memory.limit_bytes}."
                raise ApiError(413, message, code="body_too_large", headers={"Connection": "close"})
            if full or share * (of_group + more) > memory.limit_bytes:
                raise ApiError(
                    429,
                    f"This ingress replica has {memory.used_bytes} bytes of bodies in memory, "
                    f"{of_group} of them of {group}, which may have {part} of max_body_memory_bytes = "
                    f"{memory.limit_bytes}; this body would add {more}.",
                    code="body_memory_full",
                    # The unread rest of the body must not be read as the next request.
                    headers={"Retry-After": "5", "Connection": "close"},
                )


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
                    await error_response(error, scope)(scope, receive, send)
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
