"""Replays in several processes, with a line of progress for each."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Protocol, TypeVar

from benchmarks.common.progress import say


class Work(Protocol):
    """A replay to run."""

    @property
    def label(self) -> str:
        """The name of the replay in progress and errors."""
        ...


W = TypeVar("W", bound=Work)
F = TypeVar("F")


def run_all(
    jobs: Sequence[W], execute: Callable[[W], F], workers: int
) -> tuple[Mapping[W, F], Mapping[str, str]]:
    """Run every job; return the figures by job, and the reason of each failure by the job's label.

    A job that raises does not end the others. One worker runs in this process. An interrupt ends the workers.
    """
    runs: dict[W, F] = {}
    failures: dict[str, str] = {}
    for number, (job, run, why) in enumerate(_finished(jobs, execute, workers), 1):
        if run is None:
            failures[job.label] = why
        else:
            runs[job] = run
        say(f"{number}/{len(jobs)} {job.label}: {why}")
    return runs, failures


def _finished(
    jobs: Sequence[W], execute: Callable[[W], F], workers: int
) -> Iterator[tuple[W, F | None, str]]:
    if workers == 1:
        for job in jobs:
            yield job, *_attempt(execute, job)
        return
    # Spawned: a forked child would inherit the locks of numba's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_end_on_interrupt) as pool:
        pending = {pool.submit(_attempt, execute, job): job for job in jobs}
        try:
            for future in as_completed(pending):
                yield pending[future], *future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _attempt(execute: Callable[[W], F], job: W) -> tuple[F | None, str]:
    try:
        return execute(job), "done"
    except Exception as error:
        return None, f"failed: {type(error).__name__}: {error}"


def _end_on_interrupt() -> None:
    """Ctrl-C reaches the whole process group; a worker that dies of it prints no traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
