"""The smallest world that still fails: fewer clients, fewer events, shorter answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True)
class Kept:
    """A world's seed, and what is kept of the world: `7:c0,3:e1:t20`. A part without an entry is whole."""

    seed: str
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The numbers of its clients (`c`) and events (`e`), and a bound on the tokens of each sequence (`t`)."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what `str` wrote."""
        seed, *parts = text.split(":")
        return cls(seed, {part[0]: tuple(int(n) for n in part[1:].split(",") if n) for part in parts})

    def __str__(self) -> str:
        return ":".join([self.seed, *(name + ",".join(map(str, each)) for name, each in self.parts.items())])


def shrink(whole: Kept, clients: int, events: int, fails: Callable[[Kept], bool]) -> Kept:
    """Return the smallest part of a failing world, of so many clients and events, that `fails` too.

    The search takes two minutes at most.
    """
    until = time.monotonic() + 120.0
    kept = Kept(whole.seed, {"c": tuple(range(clients)), "e": tuple(range(events))} | whole.parts)
    if not fails(kept):
        return whole
    for name in "ec":
        size = len(kept.parts[name])
        while size:  # drop half of them, then a quarter, then each alone
            numbers = kept.parts[name]
            for start in range(0, len(numbers), size):
                fewer = tuple(n for n in kept.parts[name] if n not in numbers[start : start + size])
                smaller = Kept(whole.seed, kept.parts | {name: fewer})
                kept = smaller if time.monotonic() < until and fails(smaller) else kept
            size //= 2
    for tokens in (1, 2, 5, 20, 60, 150):
        smaller = Kept(whole.seed, kept.parts | {"t": (tokens,)})
        if time.monotonic() < until and fails(smaller):
            return smaller
    return kept
