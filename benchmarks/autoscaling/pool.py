"""Runs replays in several processes, and lets go of them at once when interrupted."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass

from benchmarks.autoscaling.plan import Job
from benchmarks.autoscaling.store import Run


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a replay came to nothing."""

    why: str


def run_all(
    jobs: Sequence[Job], execute: Callable[[Job], Run], workers: int
) -> Generator[tuple[Job, Run | Failure]]:
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
        pending: dict[Future[Run | Failure], Job] = {pool.submit(_tried, execute, job): job for job in jobs}
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


def _tried(execute: Callable[[Job], Run], job: Job) -> Run | Failure:
    try:
        return execute(job)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")


def _end_on_interrupt() -> None:
    """Ctrl-C reaches the whole group; a worker that dies of it prints no traceback over the progress."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
