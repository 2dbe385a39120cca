"""`GET /autoscaling/events`: one stream of the fleet's state for all its listeners."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.engine_response import STREAM_HEADERS, WriteNow, write_now
from serve_app.settings.keys_file import ApiKey

logger = logging.getLogger("ray.serve")

_INTERVAL_S = 1.0
_QUIET_TICKS = 15
"""A comment is sent after so many seconds without an event, so that proxies keep the connection."""
_UNREAD = 16
"""A listener that has not read so many events is dropped, and may come back."""


class FleetView(Protocol):
    """The source of the fleet's state."""

    async def parts(self, watched: bool) -> dict[str, Any]:
        """Return the state by part. Called every second, `watched` if anybody listens."""
        ...

    def everything(self) -> dict[str, Any]:
        """Return the last state with what a new listener needs besides, such as earlier samples."""
        ...


class FleetEvents:
    """Sends the changed parts of the state to all listeners, at most once a second.

    An event is built once, however many listen. A stream ends when this ingress replica drains, and when the
    listener's API key is no longer in force.
    """

    def __init__(self, view: FleetView, keys: ApiKeyFile | None, is_draining: Callable[[], bool]) -> None:
        self._view = view
        self._keys = keys
        self._is_draining = is_draining
        self._listeners: set[_Listener] = set()
        self._sent: dict[str, Any] = {}
        self._quiet = 0

    async def run(self) -> None:
        """Send events until cancelled."""
        failure = ""
        while True:
            try:
                await self.tick()
                failure = ""
            except Exception as error:  # the next second may be better
                if failure != (failure := repr(error)):
                    logger.exception("the state of the fleet could not be sent")
            await asyncio.sleep(_INTERVAL_S)

    async def tick(self) -> None:
        """Send what has changed since the last call, and end streams that must end."""
        parts = await self._view.parts(bool(self._listeners))
        changed = {name: part for name, part in parts.items() if self._sent.get(name) != part}
        self._sent |= changed
        self._quiet = 0 if changed else self._quiet + 1
        frame = _event(changed) if changed else b"" if self._quiet % _QUIET_TICKS else b": \n\n"
        draining = self._is_draining()
        for listener in tuple(self._listeners):
            in_force = self._keys is None or (listener.key is not None and self._keys.in_force(listener.key))
            if draining or not in_force:
                listener.put(b"")
            elif frame:
                listener.put(frame)

    async def stream(self, request: Request, key: ApiKey | None, more: dict[str, Any]) -> Response:
        """Return a stream that begins with the whole state, and with `more`, which only its listener gets."""
        if request.state.head:
            return Response(headers=STREAM_HEADERS)
        if not self._listeners:  # nobody has kept the state fresh
            self._sent = await self._view.parts(True)
        listener = _Listener(key, write_now(request.scope))
        return StreamingResponse(self._frames(listener, more), headers=STREAM_HEADERS)

    async def _frames(self, listener: "_Listener", more: dict[str, Any]) -> AsyncIterator[bytes]:
        self._listeners.add(listener)  # in the same turn of the loop as `everything`, to miss no later event
        try:
            yield _event({**self._view.everything(), **more})
            async for frame in listener.unsent():
                yield frame
        finally:
            self._listeners.discard(listener)


class _Listener:
    """The frames of one client that are not sent yet."""

    def __init__(self, key: ApiKey | None, write: WriteNow | None) -> None:
        self.key = key
        self._write = write
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._idle = False
        """Whether all earlier frames have been sent."""

    def put(self, frame: bytes) -> None:
        """Send a frame soon; an empty one ends the stream. A direct write costs a fifth of a task's turn."""
        if not (frame and self._idle and self._write is not None and self._write(frame)):
            self._idle = False
            self._unsent.put_nowait(frame if self._unsent.qsize() < _UNREAD else b"")

    async def unsent(self) -> AsyncIterator[bytes]:
        """Yield the frames that could not be written directly, until the stream ends."""
        self._idle = self._unsent.empty()
        while frame := await self._unsent.get():
            yield frame
            self._idle = self._unsent.empty()


def _event(parts: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(parts) + b"\n\n"
