"""`GET /autoscaling/events`: one stream of the fleet's state for all its listeners."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.engine_response import STREAM_HEADERS, WriteNow, disconnected, write_now
from serve_app.settings.keys_file import ApiKey

logger = logging.getLogger("ray.serve")

_INTERVAL_S = 1.0
_QUIET_TICKS = 15
"""A comment is sent after so many seconds without an event, so that proxies keep the connection."""
_UNREAD = 16
"""A listener that has not read so many events is dropped, and may come back."""
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in STREAM_HEADERS.items()]


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
            pause = asyncio.create_task(asyncio.sleep(_INTERVAL_S))
            try:
                await self.tick()
                failure = ""
            except Exception as error:  # the next second may be better
                if failure != (failure := repr(error)):
                    logger.exception("the state of the fleet could not be sent")
            await pause

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

    async def stream(self, key: ApiKey | None, more: dict[str, Any]) -> Response:
        """Return a stream that begins with the whole state, and with `more`, which only its listener gets."""
        if not self._listeners:  # nobody has kept the state fresh
            self._sent = await self._view.parts(True)
        return _Listener(self._listeners, lambda: _event({**self._view.everything(), **more}), key)


class _Listener(Response):
    """Sends what is `put` until it is empty, or until the client leaves."""

    def __init__(self, listeners: "set[_Listener]", first: Callable[[], bytes], key: ApiKey | None) -> None:
        super().__init__()
        self.key = key
        self._listeners = listeners
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._first = first
        self._write_now: WriteNow | None = None

    def put(self, frame: bytes) -> None:
        """Send a frame soon; an empty one ends the stream. A direct write costs a fifth of a task's turn."""
        waits = not self._unsent.empty()
        if waits or not frame or self._write_now is None or not self._write_now(frame):
            self._unsent.put_nowait(frame if self._unsent.qsize() < _UNREAD else b"")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        head = scope["state"].get("head", False)
        if head:
            await send({"type": "http.response.body"})
            return
        self._listeners.add(self)  # in the same turn of the loop, so that it misses no event after the first
        self._unsent.put_nowait(self._first())
        self._write_now = write_now(scope)
        leaving = asyncio.ensure_future(disconnected(receive))
        try:
            while not leaving.done():
                frame = asyncio.ensure_future(self._unsent.get())
                await asyncio.wait((frame, leaving), return_when=asyncio.FIRST_COMPLETED)
                if not frame.done():
                    frame.cancel()
                    break
                part = frame.result()
                await send({"type": "http.response.body", "body": part, "more_body": bool(part)})
                if not part:
                    break
        finally:
            self._listeners.discard(self)
            leaving.cancel()


def _event(parts: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(parts) + b"\n\n"
