"""The text of a streamed chat answer, as the next turn of its conversation repeats it."""

import asyncio
import json
from collections.abc import Sequence

_SLICE_FRAMES = 256
"""Parsed between two looks at the sockets, in about 1 ms."""


async def answer_text(frames: Sequence[bytes]) -> str:
    """The content of the first choice. `frames` are what `sse.Scanner` kept; one that is no JSON has none."""
    parts = []
    for start in range(0, len(frames), _SLICE_FRAMES):
        parts += [_content(frame) for frame in frames[start : start + _SLICE_FRAMES]]
        await asyncio.sleep(0)
    return "".join(parts)


def _content(frame: bytes) -> str:
    try:
        choice = json.loads(frame[frame.find(b"{") :])["choices"][0]
        content = choice["delta"].get("content")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ""
    return content if isinstance(content, str) and choice.get("index", 0) == 0 else ""
