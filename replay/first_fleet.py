"""The fleet that stands at the start of a replay, the same for every policy."""

from bisect import bisect_left
from collections.abc import Iterator

from replay.controller import Sampled
from replay.defaults import GOAL
from replay.fleet.fleet import Conditions
from replay.laws.static import Static
from replay.profile import Profile
from replay.simulation import simulate
from traces.trace import Chunk, Trace, part

FIRST_S = 600.0
_MOST_REQUESTS = 50_000
"""The most requests to replay of the first minutes."""


class _FirstRequests:
    """The first requests of a trace, as a trace."""

    def __init__(self, trace: Trace) -> None:
        self.name = trace.name
        self.block_tokens = trace.block_tokens
        self._chunks: list[Chunk] = []
        count = 0
        for chunk in trace.chunks():
            taken = min(int(chunk.arrival_s.searchsorted(FIRST_S)), _MOST_REQUESTS - count)
            if taken:
                self._chunks.append(part(chunk, 0, taken))
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


def first_fleet(
    trace: Trace, profile: Profile, conditions: Conditions, most: int, percentile: float = 95.0
) -> int:
    """The least static fleet that attains 99 % in the first ten minutes of `trace`; 0 without arrivals there.

    A recorded window is cut from traffic that was being served; a policy that began it with nothing
    would be judged by one cold start more than it would have had. Where not even `most` replicas attain
    99 %, all of them.
    """
    first = _FirstRequests(trace)
    if not first:
        return 0

    def attained(replicas: int) -> float:
        return simulate(
            first,
            Sampled(Static(replicas)),
            profile,
            conditions,
            bounds=(0, most),
            initial=replicas,
            percentile=percentile,
        ).attainment

    if attained(most) < GOAL:
        return most
    return 1 + bisect_left(range(1, most), GOAL, key=attained)
