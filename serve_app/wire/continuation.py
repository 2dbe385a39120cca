"""The record with which an engine continues a stream of another engine, and the delivered tokens in it.

Delivered tokens are tokens whose events were sent to the client. An engine notes each token in
`DeliveredTokens` once all of its events have left. They go to the ingress with the stream. If the engine is
lost, the ingress sends them to another engine in a `Continuation`.
"""

from collections.abc import Sequence
from itertools import islice

import msgspec


class Continuation(msgspec.Struct, array_like=True, frozen=True):
    """The delivered part of an answer, which other engines generated."""

    tokens: Sequence[Sequence[int]]
    """The ids of the delivered tokens, by sequence (vLLM's `index`): together at most 64 Ki."""
    created: int
    """`created` of the answer's events: whole seconds of Unix time; 0 for an answer that has none."""
    ttft_s: float
    """The time from the request's arrival at the ingress to its first event."""
    moves: int = 1
    """How often the stream has moved to another engine, this time included."""
    identity: str = ""
    """The model that generated the tokens (`weights.model_identity`). An engine of another identity answers
    409."""
    sizes: Sequence[Sequence[int]] = ()
    """The numbers of tokens in vLLM's outputs, by sequence and in order."""

    def outputs(self, sequence: int) -> list[list[int]]:
        """Return the delivered tokens of a sequence, divided as vLLM's handler got them.

        Some parsers of tool calls and reasoning emit other text after several tokens at once than after each
        of them. Tokens whose division is unknown come one by one.
        """
        rest = iter(self.tokens[sequence])
        sizes = self.sizes[sequence] if sequence < len(self.sizes) else ()
        outputs = [list(islice(rest, size)) for size in sizes]
        return [*filter(None, outputs), *([token] for token in rest)]

    def is_of(self, identity: str, vocabulary: int) -> bool:
        """Whether an engine of the model `identity`, with token ids below `vocabulary`, can continue it."""
        if self.identity != identity:
            return False
        return all(min(ids) >= 0 and max(ids) < vocabulary for ids in self.tokens if ids)


class DeliveredTokens:
    """The delivered tokens of one stream on its engine, until a message takes them to the ingress."""

    __slots__ = ("_noted", "outputs", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        """The number of all delivered tokens."""
        self.outputs = 0
        """The number of calls of `note`: at least one for each output of the engine."""
        self._noted: list[tuple[int, Sequence[int]]] = []

    def note(self, sequence: int, ids: Sequence[int]) -> None:
        """Note the tokens of one output of vLLM for a sequence. Their events have all left."""
        self.outputs += 1
        self.tokens += len(ids)
        self._noted.append((sequence, ids))

    def take(self) -> list[tuple[int, Sequence[int]]]:
        """Return the tokens noted since the last call: a pair of sequence and ids for each call of `note`."""
        noted, self._noted = self._noted, []
        return noted
