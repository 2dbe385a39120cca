"""A trace in two halves: one to tune on, one to check on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loadtests.traces import TraceError
from loadtests.traces.scale import window
from loadtests.traces.trace import Chunk, Trace

LEAST_PART_S = 600.0
"""A part is at least ten minutes: less does not hold a cold start and what follows from it."""
LEAST_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class Part:
    """The requests of a trace from `start_s` on, for `length_s` seconds; `start_s` becomes 0."""

    whole: Trace
    label: str
    start_s: float
    length_s: float | None
    """None: to the end."""

    @property
    def name(self) -> str:
        """See `Trace`."""
        return f"{self.whole.name}, {self.label}"

    @property
    def block_tokens(self) -> int:
        """See `Trace`."""
        return self.whole.block_tokens

    def chunks(self) -> Iterator[Chunk]:
        """See `Trace`."""
        return window(self.whole.chunks(), self.start_s, self.length_s)

    def progress(self) -> float:
        """See `Trace`; of the whole trace."""
        return self.whole.progress()


@dataclass(frozen=True, slots=True)
class Halves:
    """Both halves of a trace."""

    first: Part
    second: Part
    duration_s: float
    """Length of the whole trace."""


def halves(trace: Trace) -> Halves:
    """The first and the second half of the time.

    Raises:
        TraceError: for a trace too short to be tuned on, and whatever reading it raises.
    """
    requests, duration_s = 0, 0.0
    for chunk in trace.chunks():
        requests += len(chunk)
        duration_s = float(chunk.arrival_s[-1])
    if duration_s < 2 * LEAST_PART_S:
        raise TraceError(
            f"{trace.name}: lasts {duration_s:.0f} s, and tuning on one half and checking on the other takes "
            f"at least {2 * LEAST_PART_S:.0f} s"
        )
    middle_s = duration_s / 2.0
    first = Part(trace, "first half", 0.0, middle_s)
    before = sum(len(chunk) for chunk in first.chunks())
    for count, label in ((before, "first"), (requests - before, "second")):
        if count < LEAST_REQUESTS:
            raise TraceError(
                f"{trace.name}: its {label} half has {count} requests; at least {LEAST_REQUESTS} are needed"
            )
    return Halves(first, Part(trace, "second half", middle_s, None), duration_s)
