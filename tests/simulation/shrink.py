"""The smallest world that still fails: fewer clients, fewer events, shorter answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class Kept:
    """A world's seed, and what is kept of the world: `7:c0,3:e1:t20`. None keeps all."""

    seed: str
    clients: tuple[int, ...] | None = None
    """The numbers of its clients."""
    events: tuple[int, ...] | None = None
    """The numbers of its events."""
    tokens: int | None = None
    """A bound on the tokens of each sequence."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what `str` wrote."""
        seed, *parts = text.split(":")
        given = {part[0]: tuple(int(number) for number in part[1:].split(",") if number) for part in parts}
        return cls(seed, given.get("c"), given.get("e"), given["t"][0] if "t" in given else None)

    def __str__(self) -> str:
        parts = [self.seed]
        for letter, numbers in (("c", self.clients), ("e", self.events)):
            if numbers is not None:
                parts.append(letter + ",".join(map(str, numbers)))
        return ":".join([*parts, *([f"t{self.tokens}"] if self.tokens is not None else [])])


def shrink(whole: Kept, clients: int, events: int, fails: Callable[[Kept], bool]) -> Kept:
    """Return the smallest part of a failing world that was found to fail, within two minutes.

    Args:
        whole: The world.
        clients: The number of its clients.
        events: The number of its events.
        fails: Whether a part of the world fails.
    """
    until = time.monotonic() + 120.0
    kept = replace(
        whole,
        clients=tuple(range(clients)) if whole.clients is None else whole.clients,
        events=tuple(range(events)) if whole.events is None else whole.events,
    )
    if not fails(kept):
        return whole
    for name in ("events", "clients"):
        size = len(getattr(kept, name))
        while size:  # drop half of them, then a quarter, then each alone
            numbers = getattr(kept, name)
            for start in range(0, len(numbers), size):
                fewer = tuple(
                    each for each in getattr(kept, name) if each not in numbers[start : start + size]
                )
                if time.monotonic() < until and fails(smaller := replace(kept, **{name: fewer})):
                    kept = smaller
            size //= 2
    for tokens in (1, 2, 5, 20, 60, 150):
        if time.monotonic() < until and fails(smaller := replace(kept, tokens=tokens)):
            return smaller
    return kept
