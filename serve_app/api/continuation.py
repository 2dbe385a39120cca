"""What a stream needs to go on at another engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Continuation:
    """The part of an answer that its client has been sent by engines that were lost."""

    tokens: tuple[Sequence[int], ...]
    """The ids of the generated tokens behind the events sent, by sequence (vLLM's `index`)."""
    created: int
    """`created` of the answer's events, in Unix time; 0 for an answer that has none."""
    ttft_s: float
    """From the request's arrival at the ingress to its first event."""
    moves: int = 1
    """How often the stream has moved to another engine, this time included."""
    identity: str = ""
    """The model that generated the tokens; "" where that is not known. See `weights.model_identity`."""

    def is_of(self, identity: str, vocabulary: int) -> bool:
        """Whether an engine of the model `identity`, with token ids below `vocabulary`, can go on with it."""
        if self.identity and self.identity != identity:
            return False
        return all(min(ids) >= 0 and max(ids) < vocabulary for ids in self.tokens if ids)


@dataclass(slots=True)
class TokenJournal:
    """The ids of the tokens of one stream, told once all of their events have been handed on."""

    outputs: int = 0
    """How often tokens have been noted: at least once for each output of the engine."""
    _told: list[tuple[int, Sequence[int]]] = field(default_factory=list)

    def tell(self, sequence: int, tokens: Sequence[int]) -> None:
        """Note tokens of a sequence, whose events have been handed on."""
        self.outputs += 1
        self._told.append((sequence, tokens))

    def take(self) -> list[tuple[int, Sequence[int]]]:
        """Return what was noted since the last call, as pairs of sequence and ids."""
        told, self._told = self._told, []
        return told
