"""Runs replays in several processes, and lets go of them at once when interrupted."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol, TextIO, TypeVar

_TRUSTED_EFFORT = 0.05
"""Share of the work after which the time left is computed from its own pace."""


class Work(Protocol):
    """A replay that is to be run."""

    @property
    def label(self) -> str:
        """Its name for people."""
        ...

    @property
    def effort(self) -> float:
        """Roughly the seconds it takes."""
        ...


class Figures(Protocol):
    """What a finished replay is reported with."""

    @property
    def gpu_seconds(self) -> float:
        """Its bill."""
        ...

    @property
    def attainment(self) -> float:
        """From 0 to 1."""
        ...

    @property
    def wall_s(self) -> float:
        """Seconds that it took."""
        ...


W = TypeVar("W", bound=Work)
F = TypeVar("F", bound=Figures)


class Progress:
    """A line for each finished replay, with an estimate of the time left."""

    def __init__(
        self,
        jobs: Sequence[Work],
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

    def finished(self, job: Work, run: Figures | Failure) -> None:
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


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a replay came to nothing."""

    why: str


def run_all(
    jobs: Sequence[W], execute: Callable[[W], F], workers: int
) -> Generator[tuple[W, F | Failure], None, None]:
    """Every job with its run, as they finish. One that raises does not end the others.

    With one worker they run in this process. Closing the iterator, or an exception in its consumer, ends the
    workers.
    """
    if workers == 1:
        for job in jobs:
            yield job, _tried(execute, job)
        return
    # Spawned: a forked child would inherit the locks of numba's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_end_on_interrupt) as pool:
        pending: dict[Future[F | Failure], W] = {pool.submit(_tried, execute, job): job for job in jobs}
        try:
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield pending.pop(future), future.result()
        finally:
            if pending:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in multiprocessing.active_children():
                    child.terminate()


def _tried(execute: Callable[[W], F], job: W) -> F | Failure:
    try:
        return execute(job)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")


def _end_on_interrupt() -> None:
    """Ctrl-C reaches the whole group; a worker that dies of it prints no traceback over the progress."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
