"""Read the content of a request in chunks, within bounds of size and time, and without its content coding."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.requests import ClientDisconnect, Request

from serve_app.api.errors import ApiError
from serve_app.settings.settings_error import shown

SLOWEST_BYTES_PER_S = 16_384
"""Each so many bytes received give the body one more second. So 8 MiB at 131 kbit/s are still read."""
_PIECE_BYTES = 1 << 16
"""Unpacked at once, in 0.2 ms, for which the event loop stands still."""
_ZLIB = zlib.MAX_WBITS
_WINDOW_BITS = {"": 0, "gzip": 16 + _ZLIB, "x-gzip": 16 + _ZLIB, "deflate": _ZLIB}
"""zlib's `wbits` of the content codings that are decoded (RFC 9110, 8.4.1)."""


def takes_gzip(request: Request) -> bool:
    """Return whether the client accepts an answer with gzip (RFC 9110, 12.5.3)."""
    accepted = request.headers.get("accept-encoding", "")
    return bool(re.search(r"(?i)(^|,)\s*gzip\s*($|,|;\s*q=(1|0?\.\d*[1-9]))", accepted))


class Content:
    """The content of one request.

    Args:
        request: The request. Its body is not read yet.
        max_bytes: The most bytes of the body, with its coding and without it.
        too_large: The error of a larger body. A declared length is checked before the body is read.
        timeout_s: Seconds that the body may take. Each `SLOWEST_BYTES_PER_S` bytes received give one second
            more. The bound keeps slow clients from occupying a connection and memory for ever.

    Raises:
        ApiError: 415 for a content coding that is not decoded, `too_large`.
    """

    def __init__(self, request: Request, max_bytes: int, too_large: ApiError, timeout_s: float) -> None:
        self._request, self._max_bytes, self._too_large = request, max_bytes, too_large
        self._timeout_s = timeout_s
        self._received = 0
        """The bytes of the body so far, as they came."""
        given = ",".join(request.headers.getlist("content-encoding"))
        codings = [
            name for each in given.split(",") if (name := each.strip().lower()) not in ("", "identity")
        ]
        self._coding = ",".join(codings)
        if self._coding not in _WINDOW_BITS:
            raise ApiError(
                415,
                f"Content-Encoding = {shown(given)}: must be gzip or deflate, given once.",
                code="unsupported_encoding",
                headers={"Accept-Encoding": "gzip, deflate"},
            )
        self._unpacker: Any = None
        length = request.headers.get("content-length", "")
        known = not codings and length.isascii() and length.isdigit() and len(length) < 16
        self.length = int(length) if known else None
        """The declared length; None if none is declared, or if the content has a coding."""
        if known and int(length) > max_bytes:
            raise too_large

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the content.

        Raises:
            ApiError: 400 if the client leaves or the coding is malformed, 408 if it is late, `too_large`.
        """
        due = asyncio.get_running_loop().time() + self._timeout_s
        stream, size = self._request.stream(), 0
        while (data := await self._next(stream, due)) is not None:
            self._received += len(data)
            if self._received > self._max_bytes:
                raise self._too_large
            for piece in self._unpack(data) if self._coding else (data,):
                size += len(piece)
                if size > self._max_bytes:
                    raise self._too_large
                yield piece
                if self._coding:
                    await asyncio.sleep(0)
        if self._coding and not (self._unpacker and self._unpacker.eof):
            raise self._malformed("it ends too early")

    async def _next(self, stream: AsyncIterator[bytes], due: float) -> bytes | None:
        try:
            async with asyncio.timeout_at(due + self._received / SLOWEST_BYTES_PER_S):
                return await anext(stream, None)
        except TimeoutError:
            raise ApiError(
                408,
                f"The body is incomplete: {self._received} bytes arrived in time. This server waits "
                f"{self._timeout_s:g} s for a body, and one second more for each {SLOWEST_BYTES_PER_S} bytes "
                "received.",
                code="body_timeout",
                headers={"Connection": "close"},  # the rest of the body is not the next request
            ) from None
        except ClientDisconnect:
            raise ApiError(400, "The client left before its request was complete.") from None

    def _unpack(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or (len(piece) == _PIECE_BYTES and not self._unpacker.eof):
            if self._unpacker is None or self._unpacker.eof:  # a gzip file may have several members
                # Many clients leave out zlib's header of deflate, whose first byte ends in 8.
                bare = self._coding == "deflate" and data[0] & 15 != 8
                self._unpacker = zlib.decompressobj(-_ZLIB if bare else _WINDOW_BITS[self._coding])
            try:
                piece = self._unpacker.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise self._malformed(str(error)) from None
            data = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            if piece:
                yield piece

    def _malformed(self, reason: str) -> ApiError:
        return ApiError(400, f"The body is not {self._coding}: {reason}.", code="invalid_encoding")
