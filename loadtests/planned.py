"""A request before it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planned:
    """What is sent, and when. Equal scenarios and seeds plan equal requests."""

    index: int
    """Its place in the plan, from 0; its prompt is drawn from the seed and this."""
    at_s: float
    """The intended time, seconds after the run's start. A later turn of a conversation has none before the
    answer to the turn before has come, and 0 here."""
    kind: str
    model: str | None
    """None: the only one that generates."""
    api: str
    """`completions` or `chat`."""
    prompt_tokens: int
    """All of it. Of a later turn, if each answer has as many tokens as planned."""
    output_tokens: int
    prefix_tokens: int = 0
    """The first tokens of the prompt, which other requests of the kind share."""
    prefix: int = 0
    """Which of the kind's prefixes."""
    leave_after_tokens: int | None = None
    leave_after_s: float | None = None
    session: int | None = None
    """Which conversation it is a turn of: the `index` of its first turn. None: it stands alone."""
    turn: int = 0
    """Which turn, from 1; 0 if it stands alone."""
    history_tokens: int = 0
    """Tokens between the prefix and the new message: earlier messages and their answers."""
    think_s: float = 0.0
    """From the end of the answer before to the intended time."""
    following: Planned | None = None
    """The next turn of the conversation."""

    @property
    def own_tokens(self) -> int:
        """Tokens that neither the prefix nor an earlier turn has."""
        return self.prompt_tokens - self.prefix_tokens - self.history_tokens

    def turns(self) -> Iterator[Planned]:
        """It and the turns after it."""
        turn: Planned | None = self
        while turn is not None:
            yield turn
            turn = turn.following
