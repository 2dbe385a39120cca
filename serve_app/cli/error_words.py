"""The body of an error response as one sentence."""

from __future__ import annotations

import json

_SHOWN = 500


def error_words(data: bytes) -> str:
    """The code and message of an OpenAI-shaped error, or other bytes as text; at most 500 characters."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict) and error.get("message"):
        code = error.get("code") or error.get("type") or "error"
        return f"{code}: {error['message']}"[:_SHOWN]
    if isinstance(error, str):
        return error[:_SHOWN]
    return data[:_SHOWN].decode(errors="replace").strip()
