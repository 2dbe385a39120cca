"""Latency figures of one streamed completion, as its engine replica sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec


@dataclass(slots=True)
class StreamTimer:
    """Clock of one stream. Seconds throughout; figures are given in milliseconds.

    It starts when the request arrived at the ingress, `held_s` of which it was held there.
    """

    arrived: float
    held_s: float = 0.0
    first: float = 0.0

    def token(self) -> None:
        """Note that tokens have arrived; only the first call counts."""
        if not self.first:
            self.first = time.perf_counter()

    def figures(self, tokens: int) -> dict[str, float | int]:
        """The extension field of a usage frame, for `tokens` generated tokens."""
        now = time.perf_counter()
        total = now - self.arrived
        first = self.first or now
        between = (now - first) / (tokens - 1) if tokens > 1 else 0.0
        return {
            "cold_wait_ms": round(self.held_s * 1e3, 3),
            "ttft_ms": round((first - self.arrived) * 1e3, 3),
            "inter_token_ms": round(between * 1e3, 3),
            "total_time_ms": round(total * 1e3, 3),
            "tokens_generated": tokens,
            "tokens_per_second": round(tokens / total, 3) if total > 0 else 0.0,
        }


_USAGE_MARK = b'"choices":[],'


def with_latency(frame: bytes, timer: StreamTimer, cached_tokens: Callable[[], int]) -> bytes:
    """`frame` with a `latency` field if it is the final usage frame of a stream, else unchanged.

    It also gets the prompt tokens found in the prefix cache, which vLLM's usage tells only where a server
    was started to tell them.

    Only that frame has an empty `choices`; inside a JSON string the mark's quotes would be escaped.
    """
    if _USAGE_MARK not in frame:
        return frame
    document = msgspec.json.decode(frame[len(b"data: ") :])
    usage = document.get("usage")
    if not usage:
        return frame
    figures = timer.figures(usage.get("completion_tokens", 0))
    document["latency"] = {**figures, "cached_tokens": cached_tokens()}
    return b"data: " + msgspec.json.encode(document) + b"\n\n"
