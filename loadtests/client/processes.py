"""Client processes that share the requests of a run: one keeps time at some hundred streams."""

import contextlib
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Self

from loadtests.client import child
from loadtests.client.child import ClosedShare, Job, OpenShare, Unpacker
from loadtests.client.prompts import Target
from loadtests.client.timekeeping import worst
from loadtests.planned import Planned
from loadtests.record import Record, Timekeeping
from loadtests.scenario import Client, Closed

_READ_BYTES = 2**20
_READS = 16
"""Reads from one process in one poll: 16 MiB, some 0.2 s of work, so that the screen is drawn in between."""
_GRACE_S = 2.0


class _Child:
    """One process, as its parent sees it."""

    def __init__(self, number: int, job: Job) -> None:
        self.number, self._job = number, job
        context = multiprocessing.get_context("spawn")
        self._orders, theirs = context.Pipe(duplex=True)
        self._results, writing = context.Pipe(duplex=False)
        self.process: SpawnProcess = context.Process(
            target=child.main, args=(theirs, writing), name=f"loadtest-client-{number}", daemon=True
        )
        self._theirs: tuple[Connection, Connection] = (theirs, writing)
        self._unpacker = Unpacker()
        self.ready = False
        self.ended = False
        self.records = 0
        self.timekeeping: Timekeeping | None = None
        self.failed = ""

    def start(self) -> None:
        self.process.start()
        for end in self._theirs:  # Else this process would hold open what only the child may.
            end.close()
        os.set_blocking(self._results.fileno(), False)

    def send(self, order: object) -> None:
        """Send its job, its start time, or the order to stop. `poll` notices a process that has died."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._orders.send(order)

    def send_job(self) -> None:
        self.send(self._job)

    def poll(self) -> list[Record]:
        """The records that have come."""
        found: list[Record] = []
        for _ in range(_READS):
            if self.ended:
                break
            try:
                data = os.read(self._results.fileno(), _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                self._over()
                break
            for message in self._unpacker.feed(data):
                self.ready = True
                if message.record is not None:
                    found.append(message.record)
                elif message.timekeeping is not None:
                    self.timekeeping = message.timekeeping
                elif message.failed:
                    self.failed = f"client process {self.number} failed: {message.failed}"
        self.records += len(found)
        return found

    def _over(self) -> None:
        """It closed its pipe: at its end, or because it died."""
        self.ended = True
        self.process.join(_GRACE_S)
        if self.timekeeping is None and not self.failed:
            code = self.process.exitcode
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit status {code}"
            self.failed = f"client process {self.number} ended {how} before its requests were over"

    def close(self) -> None:
        if self.process.pid is not None:
            self.process.kill()
            self.process.join(_GRACE_S)
        if self.process.exitcode is not None or self.process.pid is None:
            self.process.close()
        for end in (self._orders, self._results, *self._theirs):
            end.close()


class ClientProcesses:
    """Start, begin when all are ready, poll until finished, close.

        with ClientProcesses.of_open_loop(planned, target, settings) as clients:
            clients.start()
            while not clients.ready: clients.poll() ...
            clients.begin(time.monotonic() + 1)
            while not clients.finished: records += clients.poll() ...

    Nothing here waits for a client, except `start` for its share to be taken, and `close`.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        """One process a job; see `of_open_loop` and `of_closed_loop`."""
        self._children = [_Child(number, job) for number, job in enumerate(jobs)]
        self._stopped = False
        self._begun = False

    @classmethod
    def of_open_loop(
        cls, planned: Sequence[Planned], target: Target, settings: Client, until_s: float = math.inf
    ) -> Self:
        """Deals the requests out in turn, by their times. `until_s` as for `drive`."""
        ordered = sorted(planned, key=lambda one: one.at_s)
        count = max(1, min(settings.processes, len(ordered)))
        shares = [OpenShare(tuple(ordered[number::count]), until_s) for number in range(count)]
        return cls([Job(share, target, settings) for share in shares])

    @classmethod
    def of_closed_loop(
        cls, closed: Closed, plan: Callable[[], Iterator[Planned]], target: Target, settings: Client
    ) -> Self:
        """Deals the streams out. Each process calls `plan`, which must be picklable, and takes its share."""
        count = min(settings.processes, closed.streams)
        jobs = []
        for number in range(count):
            streams = len(range(number, closed.streams, count))
            share = ClosedShare(closed.model_copy(update={"streams": streams}), plan, number, count)
            jobs.append(Job(share, target, settings))
        return cls(jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the processes and give each its share, about a second. They wait for `begin`."""
        resource_tracker.ensure_running()  # Started below, it would unblock the signals.
        # One that comes before a child ignores it would kill it; here it is only put off.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, child.IGNORED)
        try:
            for one in self._children:
                one.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for one in self._children:
            one.send_job()

    @property
    def ready(self) -> bool:
        """Whether every process has all it needs, as of the last `poll`."""
        return all(one.ready for one in self._children)

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes that were started."""
        return tuple(one.process.pid for one in self._children if one.process.pid is not None)

    def begin(self, at: float) -> None:
        """Let t = 0 be at `at` of `time.monotonic`: a second ahead, for the first bodies to be made."""
        self._begun = True
        for one in self._children:
            one.send(at)

    def poll(self) -> list[Record]:
        """The records that have come since the last call, without waiting."""
        return [record for one in self._children for record in one.poll()]

    def stop(self) -> None:
        """Have every open request closed and recorded as abandoned; poll on until `finished`."""
        if not self._stopped:
            self._stopped = True
            for one in self._children:
                one.send(child.STOP)

    @property
    def finished(self) -> bool:
        """Whether every process has ended, well or not, as of the last `poll`."""
        return all(one.ended for one in self._children)

    @property
    def failed(self) -> str:
        """Why processes failed; empty if none did. Their requests without a record are lost."""
        return "; ".join(one.failed for one in self._children if one.failed)

    @property
    def timekeeping(self) -> Timekeeping | None:
        """The worst of all processes; None before all have ended, or if one has failed."""
        parts = [one.timekeeping for one in self._children if one.timekeeping is not None]
        return worst(parts) if len(parts) == len(self._children) else None

    def close(self) -> None:
        """End whatever still runs, at once."""
        for one in self._children:
            one.close()
