"""Whole SSE frames from an engine replica's byte stream, and what follows them if the replica is lost."""

import logging
from collections.abc import AsyncIterator

from serve_app.ingress.refusals import replica_lost

logger = logging.getLogger("ray.serve")

_END = b"\n\n"


async def first_frames(chunks: AsyncIterator[bytes]) -> tuple[bytes, bytes]:
    """The first whole frames of `chunks`, and the part of a frame after them.

    Both are empty where `chunks` end before a frame is complete.
    """
    rest = b""
    async for chunk in chunks:
        whole, rest = _cut(rest + chunk)
        if whole:
            return whole, rest
    return b"", b""


async def relay(
    first: bytes, rest: bytes, chunks: AsyncIterator[bytes], lost: tuple[type[Exception], ...], model: str
) -> AsyncIterator[bytes]:
    """Pass on `first`, then `rest` and `chunks`, holding back the part of a frame that is not complete yet.

    What a client has been sent then always ends at a frame's end, so that an error event can follow at any
    moment. It does if `chunks` raise one of `lost`. An incomplete rest at the end of `chunks` is dropped.
    """
    yield first
    try:
        async for chunk in chunks:
            if chunk.endswith(_END):
                yield rest + chunk if rest else chunk
                rest = b""
                continue
            whole, rest = _cut(rest + chunk)
            if whole:
                yield whole
    except lost as error:
        logger.warning("model %s: replica lost within a stream: %r", model, error)
        yield replica_lost(model).last_frames()


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """The whole frames at the start of `data`, and the rest."""
    end = data.rfind(_END) + len(_END)
    return (b"", data) if end < len(_END) else (data[:end], data[end:])
