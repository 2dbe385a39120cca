"""What a client has been sent of a stream, kept so that another replica can go on with it."""

import re
from array import array
from collections.abc import Sequence

from serve_app.api.body_memory import BodyShare
from serve_app.api.errors import ApiError
from serve_app.wire.continuation import Continuation

MOST_BODY_BYTES = 256 << 10
MOST_TOKENS = 64 << 10
"""Beyond these a stream is not continued: it holds at most 256 KiB of body and 256 KiB of token ids."""
_RESERVED_TOKENS = 1024
"""Memory is reserved for so many tokens at a time."""
_TOKEN_BYTES = 4
_CREATED = re.compile(rb'"created":(\d+)')


class SentSoFar:
    """The tokens behind the events of one stream that have been passed on.

    Args:
        identity: The model that generates them.
        share: Takes the bytes that are kept: those of the request's body and those of the tokens. None where
            nobody counts them.
    """

    __slots__ = ("_created", "_reserved", "_share", "_tokens", "identity", "length")

    def __init__(self, identity: str, share: BodyShare | None) -> None:
        self.identity = identity
        self._share = share
        self._reserved = 0
        self._tokens: list[array[int]] = []
        self._created: int | None = None
        self.length = 0
        """Tokens, over all sequences."""

    def keep(self, body: bytes) -> bool:
        """Count a body that is kept to be sent again. Returns whether it is small enough and fits in."""
        return len(body) <= MOST_BODY_BYTES and self._reserve(len(body))

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
        if self.length <= self._reserved:
            return self.length <= MOST_TOKENS
        more = -(-(self.length - self._reserved) // _RESERVED_TOKENS) * _RESERVED_TOKENS
        self._reserved += more
        return self.length <= MOST_TOKENS and self._reserve(more * _TOKEN_BYTES)

    def _reserve(self, size: int) -> bool:
        try:
            if self._share is not None:
                self._share.grow(size)
        except ApiError:  # without memory the stream goes on as one that cannot be continued
            return False
        return True

    def continuation(self, ttft_s: float, moves: int) -> Continuation | None:
        """What the next engine needs to go on; None if the client has been sent nothing."""
        if self._created is None:
            return None
        tokens = [list(ids) for ids in self._tokens] or [[]]
        return Continuation(tokens, self._created, ttft_s, moves, self.identity)
