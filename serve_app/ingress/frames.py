"""Whole SSE frames out of a byte stream that may be cut anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator

_END = b"\n\n"


async def whole_frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass `chunks` on, holding back the part of a frame that is not complete yet.

    What a client has been sent then always ends at a frame's end, so an error event can follow at any
    moment, whenever the sender is lost. An incomplete rest at the end of `chunks` is dropped.
    """
    rest = b""
    async for chunk in chunks:
        data = rest + chunk if rest else chunk
        if data.endswith(_END):
            rest = b""
            yield data
            continue
        cut = data.rfind(_END) + len(_END)
        if cut < len(_END):
            rest = data
            continue
        rest = data[cut:]
        yield data[:cut]
