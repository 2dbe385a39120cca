"""The share of a version, and the counts of its answers. Pure."""

from collections import Counter
from collections.abc import Mapping
from math import ceil, log
from typing import Self

import msgspec

TTFT, ITL = "ttft", "itl"
"""The prefixes of the counts of latencies, by number of `bucket`: `ttft:-12`."""
BUCKET_RATIO = 1.1
"""The ratio of the bounds of two neighbouring buckets."""


class Share(msgspec.Struct, frozen=True):
    """The share of the conversations that a version gets."""

    share: float
    shadow: float
    """The share of the old version's requests of which it gets a copy."""
    start: str = ""
    """The settings that this document replaces (`by_settings`). It counts only while they are in force."""
    why: str = ""
    """Who set it, or which rule."""
    at: float = 0.0
    """Unix time in seconds."""

    @classmethod
    def by_settings(cls, share: float, shadow: float, identity: str) -> Self:
        """Return the share that the settings give a version of this engine identity."""
        return cls(share, shadow, f"{share:g} {shadow:g} {identity}", why="settings")


def in_force(start: Share, stored: Share | None) -> Share:
    """Return the stored share if it replaces the settings `start`; else `start`."""
    return stored if stored is not None and stored.start == start.start else start


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> Counter[str]:
    """Return what sums have grown by; all of `after` if its replica has started anew."""
    if any(after.get(name, 0) < value for name, value in before.items()):
        return Counter(after)
    return Counter(after) - Counter(before)


def bucket(seconds: float) -> int:
    """Return the number of the bucket of a latency, which ends at `BUCKET_RATIO` to this power."""
    return ceil(log(max(seconds, 1e-6)) / log(BUCKET_RATIO))
