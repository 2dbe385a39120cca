"""What a client has been sent of a stream, kept so that another replica can go on with it."""

import re
from array import array
from collections.abc import Sequence

from serve_app.wire.data_plane import Sent

MOST_BODY_BYTES = 256 << 10
MOST_TOKENS = 64 << 10
"""Beyond these a stream is not continued: it holds at most 256 KiB of body and 256 KiB of token ids."""
_CREATED = re.compile(rb'"created":(\d+)')


class SentSoFar:
    """The tokens behind the events of one stream that have been passed on."""

    __slots__ = ("_created", "_tokens", "length")

    def __init__(self) -> None:
        self._tokens: list[array[int]] = []
        self._created: int | None = None
        self.length = 0
        """Tokens, over all sequences."""

    def passed_on(self, data: bytes, tokens: Sequence[tuple[int, Sequence[int]]]) -> bool:
        """Note events that the client has been sent, and the tokens told with them.

        Returns whether they are no more than are kept.
        """
        if self._created is None and data:
            found = _CREATED.search(data)
            self._created = int(found[1]) if found else 0
        for sequence, ids in tokens:
            while len(self._tokens) <= sequence:
                self._tokens.append(array("I"))
            self._tokens[sequence].extend(ids)
            self.length += len(ids)
        return self.length <= MOST_TOKENS

    def told(self, ttft_s: float, moves: int) -> Sent | None:
        """What the next replica is told; None if the client has been sent nothing."""
        if self._created is None:
            return None
        tokens = [list(ids) for ids in self._tokens] or [[]]
        return Sent(tokens, self._created, ttft_s, moves)
