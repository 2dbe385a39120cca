"""The fleet that stands at the start of a replay, the same for every policy."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.traces.trace import Chunk, Trace
from replay.controller import Sampled
from replay.fleet.fleet import Conditions
from replay.laws.static import Static
from replay.profile import Profile
from replay.simulation import simulate

FIRST_S = 600.0
_GOAL = 0.99
_MOST_REQUESTS = 50_000
"""Enough of the first minutes where they have more."""


class _Beginning:
    """The first requests of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.name = trace.name
        self.block_tokens = trace.block_tokens
        self._chunks: list[Chunk] = []
        count = 0
        for chunk in trace.chunks():
            taken = min(int(chunk.arrival_s.searchsorted(FIRST_S)), _MOST_REQUESTS - count)
            if taken:
                self._chunks.append(_cut(chunk, taken))
            count += taken
            if taken < len(chunk):
                break

    def chunks(self) -> Iterator[Chunk]:
        """See `Trace`."""
        return iter(self._chunks)

    def progress(self) -> float:
        """See `Trace`."""
        return 1.0

    def __bool__(self) -> bool:
        return bool(self._chunks)


def _cut(chunk: Chunk, taken: int) -> Chunk:
    if taken == len(chunk):
        return chunk
    return Chunk(
        chunk.arrival_s[:taken],
        chunk.input_tokens[:taken],
        chunk.output_tokens[:taken],
        chunk.block_starts[: taken + 1],
        chunk.blocks,
    )


def first_fleet(
    trace: Trace, profile: Profile, conditions: Conditions, most: int, percentile: float = 95.0
) -> int:
    """The least static fleet that attains 99 % in the first ten minutes of `trace`; 0 without arrivals there.

    A recorded window is cut from traffic that was being served; a policy that began it with nothing
    would be judged by one cold start more than it would have had. Where not even `most` replicas attain
    99 %, all of them.
    """
    beginning = _Beginning(trace)
    if not beginning:
        return 0

    def attained(replicas: int) -> float:
        return simulate(
            beginning,
            Sampled(Static(replicas)),
            profile,
            conditions,
            bounds=(0, most),
            initial=replicas,
            percentile=percentile,
        ).attainment

    if attained(most) < _GOAL:
        return most
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if attained(middle) >= _GOAL:
            high = middle
        else:
            low = middle + 1
    return high
