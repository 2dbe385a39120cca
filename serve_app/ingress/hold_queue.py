"""The order in which held requests leave."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from serve_app.ingress.pick import Place


@dataclass(slots=True, eq=False)
class HeldRequest:
    """One request in the queue; `place` becomes where it may go to."""

    since: float
    """When it was held, in seconds of the caller's clock."""
    body_bytes: int
    prompt_tokens: int
    """As estimated; see `estimated_prompt_tokens`."""
    patience_s: float
    """How long it may wait for prefill once it is on a replica; see `ReplicaSet.take`."""
    again: bool
    """Whether it had a replica before, and lost it."""
    place: asyncio.Future[Place]


@dataclass(slots=True)
class HoldQueue:
    """First come, first served; requests that had a replica and lost it before all others.

    Those were let go before anybody who is still here, so what they lost was a turn earlier than
    everybody's.
    """

    body_bytes: int = 0
    """Of all requests in it."""
    _again: dict[HeldRequest, None] = field(default_factory=dict)
    _newcomers: dict[HeldRequest, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._again) + len(self._newcomers)

    def enter(self, held: HeldRequest) -> None:
        """Put `held` behind those of its kind."""
        self._line(held)[held] = None
        self.body_bytes += held.body_bytes

    def leave(self, held: HeldRequest) -> None:
        """Take `held` out, if it is still in."""
        if held in self._line(held):
            del self._line(held)[held]
            self.body_bytes -= held.body_bytes

    def first(self) -> HeldRequest | None:
        """Whose turn it is."""
        return next(iter(self._again or self._newcomers), None)

    def oldest_since(self) -> float | None:
        """Since when the one that has been held longest has been; None if nobody is."""
        fronts = [next(iter(line)).since for line in (self._again, self._newcomers) if line]
        return min(fronts, default=None)

    def all(self) -> list[HeldRequest]:
        """Everybody, in order."""
        return [*self._again, *self._newcomers]

    def _line(self, held: HeldRequest) -> dict[HeldRequest, None]:
        return self._again if held.again else self._newcomers
