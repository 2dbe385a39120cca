"""Which engines could serve at a time, by their processes and by what was answered."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TypeVar

from benchmarks.chaos.observed import Look, Probe, Ready
from benchmarks.chaos.roles import ENGINE_CORE, ENGINE_REPLICA

_SETTLED_S = 3.0
"""An engine takes longer to start, so one younger than this is not what `/ready` counts."""

Record = TypeVar("Record", Ready, Probe)
Pair = tuple[int, int]
"""The pids of an engine replica and of its engine core."""


def pairs(look: Look) -> set[Pair]:
    """Engines that are whole: a replica and its core, neither of them stopped."""
    replicas = {one.group: one.pid for one in look.processes if one.role == ENGINE_REPLICA and one.runs}
    return {
        (replicas[one.group], one.pid)
        for one in look.processes
        if one.role == ENGINE_CORE and one.runs and one.group in replicas
    }


class Engines:
    """How many engines could serve, over time.

    A process that is still loading serves no request, and nothing outside shows when it has loaded. So an
    engine counts from when `/ready` counts as many as there are, or from when a request is answered and no
    other engine is there to have done it. One that counts does so while it is whole.
    """

    def __init__(self, looks: Sequence[Look], readies: Sequence[Ready], answers: Sequence[Probe]) -> None:
        self._at: list[float] = []
        self._able: list[int] = []
        able: set[Pair] = set()
        began: dict[Pair, float] = {}
        said, answered = _by_end(readies), _by_end([one for one in answers if one.ok])
        for number, look in enumerate(sorted(looks, key=lambda one: one.at_s)):
            whole = pairs(look)
            for pair in whole:
                # What lives at the first look was there before.
                began.setdefault(pair, look.at_s if number else float("-inf"))
            settled = {pair for pair in whole if look.at_s - began[pair] > _SETTLED_S}
            latest = _latest(said, look.at_s)
            if latest is not None and latest.said == "up" and latest.replicas >= len(whole):
                able |= settled
            answer = _latest(answered, look.at_s)
            alone = len(settled) == 1 and not whole & able
            if alone and answer is not None and answer.sent_s > began[min(settled)] + _SETTLED_S:
                able |= settled
            self._at.append(look.at_s)
            self._able.append(len(whole & able))

    def between(self, begin_s: float, end_s: float) -> Iterator[int]:
        """Every count that was true at some time between these."""
        first = max(0, bisect_left(self._at, begin_s) - 1)
        for index in range(first, len(self._at)):
            if index > first and self._at[index] > end_s:
                break
            yield self._able[index]

    def seconds_without(self, begin_s: float, end_s: float) -> float:
        """How long no engine could serve, between these."""
        total = 0.0
        for index, at in enumerate(self._at):
            until = self._at[index + 1] if index + 1 < len(self._at) else end_s
            if self._able[index] == 0:
                total += max(0.0, min(until, end_s) - max(at, begin_s))
        return total


def _by_end(records: Sequence[Record]) -> tuple[list[float], list[Record]]:
    ordered = sorted(records, key=lambda one: one.ended_s)
    return [one.ended_s for one in ordered], ordered


def _latest(records: tuple[list[float], list[Record]], at_s: float) -> Record | None:
    """The last one that had ended by then."""
    index = bisect_right(records[0], at_s)
    return records[1][index - 1] if index else None
