"""What the counts of a version need of an answer: how it ended, and whether its tool calls can be read."""

import json
import re
from collections import Counter

from serve_app.api.engine_client import GENERATING, EngineRequest
from serve_app.settings.caller import Caller
from serve_app.wire.versions import ITL, TTFT, bucket

COPIES = Caller("shadow", "background")
"""The sender of copies. The ledger has their usage under this key."""
# Inside a JSON string the quotes would be escaped.
_AT_LIMIT = re.compile(
    rb'"(?:finish_reason|stop_reason)": ?"(?:length|max_tokens)"|^event: response\.incomplete\n'
    rb'|"incomplete_details": ?\{"reason": ?"max_output_tokens"',
    re.MULTILINE,
)
_ARGUMENTS = re.compile(rb'"(?:arguments|partial_json)": ?("(?:[^"\\]|\\.)*")')
_MOST_BYTES = 1 << 16
"""Longer arguments are not checked."""


class AnswerWatch:
    """Reads one answer as it passes, and counts it at its end.

    Args:
        counts: The counts of the version that answers.
        timed: Whether its latencies count.
    """

    __slots__ = ("_arguments", "_at_limit", "_counts", "_failed", "_timed")

    def __init__(self, counts: Counter[str], timed: bool = True) -> None:
        self._counts, self._timed = counts, timed
        self._arguments = ""
        """The arguments of all tool calls, one after the other."""
        self._at_limit = self._failed = False

    def note(self, data: bytes) -> None:
        """Read a part of the answer: whole SSE frames, or a whole body."""
        if b'_reason"' in data or b"incomplete" in data:
            self._at_limit = self._at_limit or _AT_LIMIT.search(data) is not None
        if (b"arguments" in data or b"partial_json" in data) and len(self._arguments) < _MOST_BYTES:
            self._arguments += "".join(json.loads(found) for found in _ARGUMENTS.findall(data))

    def fail(self) -> None:
        """Count the request as failed, once: it ended in an error, or has lost its replica.

        A loss counts at once. So the streams that one crash breaks are in one look of the comparison.
        """
        if not self._failed:
            self._failed = True
            self._counts["requests"] += 1
            self._counts["errors"] += 1

    def count(self, request: EngineRequest) -> None:
        """Count the answer to `request`, whose outcome is known.

        Latencies of the lane `background` do not count: it waits for other lanes.
        """
        counts, outcome, ttft_s = self._counts, request.outcome, request.ttft_s
        tokens = request.counts.output or 0
        counts["copies"] += request.caller is COPIES
        counts["refused"] += outcome == "rejected"
        if outcome == "error":
            self.fail()
        counts["requests"] += outcome == "ok" and not self._failed
        if self._timed and ttft_s is not None and not request.is_background:
            counts[f"{TTFT}:{bucket(ttft_s)}"] += 1
            if outcome == "ok" and request.wants_stream and tokens > 1:
                counts[f"{ITL}:{bucket((request.waited_s - ttft_s) / (tokens - 1))}"] += 1
        if outcome == "ok" and request.operation in GENERATING:
            counts["answers"] += 1
            counts["tokens"] += tokens
            counts["length"] += self._at_limit
            counts["tool_calls"] += bool(self._arguments)
            counts["bad_tool_calls"] += not _are_json(self._arguments)
            # A model that ends at once has generated its end token.
            counts["empty"] += tokens <= 1 and not self._at_limit and not self._arguments


def _are_json(arguments: str) -> bool:
    """Return whether a text is a row of JSON values, or too long to say."""
    decoder, at = json.JSONDecoder(), 0
    if len(arguments) >= _MOST_BYTES:
        return True
    try:
        while at < len(arguments):
            _, at = decoder.raw_decode(arguments, at)
    except (ValueError, RecursionError):
        return False
    return True
