"""The figures of one replay of the matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

REVERSAL_S = 300.0
"""A change of the target within five minutes after one the other way is a reversal."""


@dataclass(frozen=True, slots=True)
class CellRun:
    """Shares are from 0 to 1."""

    name: str
    """As the policy calls itself: `static:12` where the least static fleet was asked for."""
    gpu_seconds: float
    attainment: float
    ttft_ok: float
    infeasible: float
    rejected: int
    starts: int
    changes: int
    reversals: int
    """Of the target; counted for laws of ours only, 0 for others."""
    wall_s: float


def reversals(targets: Sequence[tuple[float, int]]) -> int:
    """How often the target changed direction within `REVERSAL_S`.

    `targets` are (seconds, target) of the first target and of every change, by time.
    """
    count = 0
    last_way, last_at = 0, 0.0
    for (_, before), (at, after) in pairwise(targets):
        way = 1 if after > before else -1
        count += way == -last_way and at - last_at <= REVERSAL_S
        last_way, last_at = way, at
    return count
