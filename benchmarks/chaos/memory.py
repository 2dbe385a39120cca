"""Whether the memory of each kind of process is flat over a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.chaos.observed import Memory
from benchmarks.chaos.roles import ROLES
from benchmarks.common import markdown

JUDGED_S = 3600.0
"""Shorter runs show numbers and no verdict: a process's first minutes grow in any case."""
FLAT_SHARE = 0.05
FLAT_BYTES = 16 << 20
"""Growth beyond both is growth: allocators of small processes move by more than 5 %."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Resident memory of one role: bytes per process, on average."""

    role: str
    first: float
    """Median of the run's second tenth: the first belongs to the start."""
    last: float
    """Median of its last tenth."""
    processes: float
    flat: bool | None
    """None where the run was too short to tell."""


def growth(samples: Sequence[Memory]) -> list[Growth]:
    """For each role that has a process at both ends of the run."""
    if len(samples) < 2:
        return []
    tenth = max(1, len(samples) // 10)
    early, late = samples[tenth : 2 * tenth] or samples[:1], samples[-tenth:]
    long = samples[-1].at_s - samples[0].at_s >= JUDGED_S
    found = []
    for role in (one.name for one in ROLES):
        first, last = _each(early, role), _each(late, role)
        if first and last:
            grown = median(last) - median(first)
            flat = grown <= max(FLAT_SHARE * median(first), FLAT_BYTES) if long else None
            counts = [one.count_by_role.get(role, 0) for one in late]
            found.append(Growth(role, median(first), median(last), median(counts), flat))
    return found


def _each(samples: Sequence[Memory], role: str) -> list[float]:
    having = (one for one in samples if one.count_by_role.get(role))
    return [one.bytes_by_role[role] / one.count_by_role[role] for one in having]


def memory_table(found: Sequence[Growth]) -> str:
    """In MiB."""
    verdicts = {True: "PASS", False: "MISS", None: "not judged: under an hour"}
    return markdown.table(
        ("role", "processes", "at the start, MiB", "at the end, MiB", "flat"),
        [
            [one.role, f"{one.processes:g}", f"{one.first / 2**20:.0f}", f"{one.last / 2**20:.0f}",
             verdicts[one.flat]]
            for one in found
        ],
        numbers=False,
    )  # fmt: skip
