"""`GET /autoscaling/events`: one stream of the fleet's state for all its listeners."""

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.engine_response import STREAM_HEADERS, WriteNow, write_now
from serve_app.api.request_head import takes_gzip
from serve_app.settings.keys_file import ApiKey

logger = logging.getLogger("ray.serve")

_INTERVAL_S = 1.0
_QUIET_TICKS = 15
"""A comment is sent after so many seconds without an event, so that proxies keep the connection."""
_UNREAD = 16
"""A listener that has not read so many events is dropped, and may come back."""
_PACK_LEVEL = 3
"""Level 3 packs 611 KB, the first event of 20 busy models, into 60 KB in 3 ms; level 6 into 50 KB in 9 ms."""


class FleetView(Protocol):
    """The source of the fleet's state."""

    async def parts(self, watched: bool) -> dict[str, Any]:
        """Return the state by part. Called every second; the answer may be empty while nobody listens."""
        ...

    def history(self) -> dict[str, Any]:
        """Return the parts that only a new listener gets, such as earlier samples."""
        ...


class FleetEvents:
    """Sends the changed parts of the state to all listeners, at most once a second.

    An event is built and packed once, however many listen. A stream ends when this ingress replica drains,
    and when the listener's API key is no longer in force.
    """

    def __init__(self, view: FleetView, keys: ApiKeyFile | None, is_draining: Callable[[], bool]) -> None:
        self._view = view
        self._keys = keys
        self._is_draining = is_draining
        self._listeners: set[_Listener] = set()
        self._sent: dict[str, Any] = {}
        self._quiet = 0
        self._lock = asyncio.Lock()
        """Each call of the view takes what is new, so only `tick` may call it, for all listeners."""

    async def run(self) -> None:
        failure = ""
        while True:
            try:
                await self.tick()
                failure = ""
            except Exception as error:  # the next second may be better
                if failure != (failure := repr(error)):
                    logger.exception("the state of the fleet could not be sent")
            await asyncio.sleep(_INTERVAL_S)

    async def tick(self, watched: bool = False) -> None:
        """Send what has changed since the last call, and end streams that must end.

        `watched` says that somebody is about to listen.
        """
        async with self._lock:
            parts = await self._view.parts(watched or bool(self._listeners))
        changed = {name: part for name, part in parts.items() if self._sent.get(name) != part}
        self._sent |= changed
        self._quiet = 0 if changed else self._quiet + 1
        frame = _event(changed) if changed else b"" if self._quiet % _QUIET_TICKS else b": \n\n"
        packed = _pack(frame)
        draining = self._is_draining()
        for listener in tuple(self._listeners):
            key = listener.key
            if draining or not (self._keys is None or (key is not None and self._keys.in_force(key))):
                listener.put(b"")
            elif frame:
                listener.put(packed if listener.unpacks else frame)

    async def stream(self, request: Request, key: ApiKey | None, more: dict[str, Any]) -> Response:
        """Return a stream that begins with the whole state, and with `more`, which only its listener gets."""
        unpacks = takes_gzip(request)
        encoding = {"Content-Encoding": "gzip"} if unpacks else {}
        headers = {**STREAM_HEADERS, **encoding, "Vary": "Accept-Encoding"}
        if request.state.head:
            return Response(headers=headers)
        if not self._listeners:  # nobody has kept the state fresh
            await self.tick(watched=True)
        listener = _Listener(key, unpacks, write_now(request.scope))
        return StreamingResponse(self._frames(listener, more), headers=headers)

    async def _frames(self, listener: "_Listener", more: dict[str, Any]) -> AsyncIterator[bytes]:
        self._listeners.add(listener)  # in the same turn of the loop as `history`, to miss no later event
        try:
            first = _event({**self._sent, **self._view.history(), **more})
            listener.put(_pack(first, with_header=True) if listener.unpacks else first)
            while frame := await listener.unsent.get():
                yield frame
                listener.is_idle = listener.unsent.empty()
        finally:
            self._listeners.discard(listener)


class _Listener:
    """The frames of one client that are not sent yet. `unpacks` says whether its stream is gzip."""

    def __init__(self, key: ApiKey | None, unpacks: bool, write: WriteNow | None) -> None:
        self.key = key
        self.unpacks = unpacks
        self._write = write
        self.unsent: asyncio.Queue[bytes] = asyncio.Queue()
        """Frames that could not be written directly."""
        self.is_idle = False
        """Whether all earlier frames have been sent."""

    def put(self, frame: bytes) -> None:
        """Send a frame soon; an empty one ends the stream. A direct write costs a fifth of a task's turn."""
        if frame and self.is_idle and self._write is not None and self._write(frame):
            return
        self.is_idle = False
        unread = self.unsent.qsize()
        if unread < _UNREAD:
            self.unsent.put_nowait(frame)
        elif unread == _UNREAD:
            self.unsent.put_nowait(b"")
            if self._write is not None:  # a blocked `send` would never come to the end
                self._write.abort()


def _event(parts: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(parts) + b"\n\n"


def _pack(frame: bytes, *, with_header: bool = False) -> bytes:
    """Return a part of a gzip stream that refers to no earlier part, so that every listener may get it.

    Gzip's trailer is left out, because the stream has no planned end. Browsers, curl, httpx and aiohttp read
    such a stream to its end.
    """
    packer = zlib.compressobj(_PACK_LEVEL, wbits=16 + zlib.MAX_WBITS if with_header else -zlib.MAX_WBITS)
    return packer.compress(frame) + packer.flush(zlib.Z_SYNC_FLUSH)
