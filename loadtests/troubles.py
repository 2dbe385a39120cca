"""What went wrong in a run, by kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.record import Outcome, Record

_NUMBER = re.compile(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]+(?:\.[0-9]+)?\b")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Requests that ended in the same way."""

    outcome: Outcome
    status: int
    """The last HTTP status; 0 without one."""
    words: str
    """As the first of them said it."""
    count: int
    first_index: int
    first_s: float
    """When the first of them ended."""


def troubles(records: Sequence[Record]) -> tuple[Trouble, ...]:
    """`records` by outcome, status and words, the most frequent first.

    Words that differ in numbers and hexadecimal ids alone are the same: 30 messages that each name their own
    request are one kind of trouble.
    """
    groups: dict[tuple[Outcome, int, str], list[Record]] = {}
    for record in records:
        key = (record.outcome, record.status, _NUMBER.sub("#", record.error))
        groups.setdefault(key, []).append(record)
    kinds = []
    for (outcome, status, _), group in groups.items():
        first = min(group, key=lambda record: (record.ended_s, record.index))
        kinds.append(Trouble(outcome, status, first.error, len(group), first.index, first.ended_s))
    return tuple(sorted(kinds, key=lambda kind: (-kind.count, kind.first_s, kind.first_index)))
