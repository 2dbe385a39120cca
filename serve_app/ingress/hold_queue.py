"""The order in which held requests leave."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from serve_app.ingress.replica_choice import Slot


@dataclass(slots=True, eq=False)
class HeldRequest:
    """One request in the queue."""

    since: float
    """When it was held, in seconds of the caller's clock."""
    body_bytes: int
    prompt_tokens: int
    """As estimated; see `estimated_prompt_tokens`."""
    prefill_budget_s: float
    """How long it may wait for prefill once it is on a replica; see `ReplicaSet.take`."""
    again: bool
    """Whether it had a replica before, and lost it."""
    slot: asyncio.Future[Slot]
    """Becomes the request's slot on a replica."""


@dataclass(slots=True)
class HoldQueue:
    """First come, first served; requests that had a replica and lost it come before all others.

    Those were let in before every request that is still here.
    """

    _again: dict[HeldRequest, None] = field(default_factory=dict)
    _newcomers: dict[HeldRequest, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._again) + len(self._newcomers)

    def enter(self, held: HeldRequest) -> None:
        """Put `held` behind those of its kind."""
        self._line(held)[held] = None

    def leave(self, held: HeldRequest) -> None:
        """Take `held` out, if it is still in."""
        self._line(held).pop(held, None)

    def first(self) -> HeldRequest | None:
        """The request that leaves next."""
        return next(iter(self._again or self._newcomers), None)

    def all(self) -> list[HeldRequest]:
        """Every request, in the order in which they leave."""
        return [*self._again, *self._newcomers]

    def _line(self, held: HeldRequest) -> dict[HeldRequest, None]:
        return self._again if held.again else self._newcomers
