"""Events of Responses, as a client reads them from the frames of a stream."""

from __future__ import annotations

import json
from typing import Any

VARIES = ("created_at",)
"""Fields of a response that differ between two requests with the same body."""


def events_of(frames: bytes) -> list[dict[str, Any]]:
    """Return the data of each event, having checked that the event's name is its type."""
    *blocks, rest = frames.split(b"\n\n")
    assert rest == b""
    found = []
    for block in blocks:
        name, data = block.split(b"\n")
        document = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + document["type"].encode()
        found.append(document)
    return found


def types_of(frames: bytes) -> list[str]:
    """Return the types of the events in order, with one delta for any number of them."""
    types = [event["type"] for event in events_of(frames)]
    return [one for one, before in zip(types, [None, *types], strict=False) if one != before]


def text_of(frames: bytes) -> str:
    """Return the text of all deltas."""
    return "".join(
        event["delta"] for event in events_of(frames) if event["type"] == "response.output_text.delta"
    )


def without_varying(document: Any) -> Any:
    """Return a document without the fields that vary, and with ids in the order of their first use."""
    seen: dict[str, str] = {}

    def same(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: same(item, key) for key, item in value.items() if key not in VARIES}
        if isinstance(value, list):
            return [same(item) for item in value]
        if isinstance(value, str) and name in ("id", "item_id", "call_id"):
            return seen.setdefault(value, f"id {len(seen)}")
        return value

    return same(document)
