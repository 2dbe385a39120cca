"""The progress of the benchmark, and the time it will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from benchmarks.autoscaling.plan import Job
from benchmarks.autoscaling.pool import Failure
from benchmarks.autoscaling.store import Run

_TRUSTED_EFFORT = 0.05
"""Share of the work after which the time left is computed from its own pace."""


class Progress:
    """A line for each finished replay, with an estimate of the time left.

    Args:
        jobs: What is to be run.
        cached: How many more were found finished.
        workers: Processes at a time.
        stream: Where to write.
        clock: Seconds.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        cached: int,
        workers: int,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._effort = sum(job.effort for job in jobs)
        self._total = len(jobs)
        self._workers = workers
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._done = 0
        self._done_effort = 0.0
        known = f"; {cached} are finished already" if cached else ""
        self._say(
            f"{len(jobs)} replays to run{known}; about {_minutes(self.left_s())} on {workers} processes"
        )

    def left_s(self) -> float:
        """Seconds left, by the pace so far."""
        left = max(self._effort - self._done_effort, 0.0)
        expected = left / self._workers
        if self._done_effort < _TRUSTED_EFFORT * self._effort or not self._done_effort:
            return expected
        return left * (self._clock() - self._began) / self._done_effort

    def finished(self, job: Job, run: Run | Failure) -> None:
        """Report a finished replay."""
        self._done += 1
        self._done_effort += job.effort
        if isinstance(run, Failure):
            what = f"FAILED: {run.why}"
        else:
            what = f"{run.gpu_seconds:,.0f} GPU-s, {100 * run.attainment:.1f} %, took {run.wall_s:.1f} s"
        left = f"; {_minutes(self.left_s())} left" if self._done < self._total else ""
        width = len(str(self._total))
        self._say(f"[{self._done:{width}}/{self._total}] {job.label}: {what}{left}")

    def _say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
