"""Client processes that share the requests of a run: one keeps time at some hundred streams."""

import asyncio
import contextlib
import itertools
import math
import multiprocessing
import os
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Self, cast

import msgspec
import uvloop

from loadtests.client.drive import drive, drive_closed
from loadtests.client.pacer import worst
from loadtests.client.prompts import Target
from loadtests.client.request import SpoiledError
from loadtests.plan import Planned
from loadtests.record import Record, Timekeeping
from loadtests.scenario import Client, Closed

_LENGTH = struct.Struct("<I")


class Message(msgspec.Struct, array_like=True):
    """What a client process tells the process that started it. Without any field it is ready to begin."""

    record: Record | None = None
    timekeeping: Timekeeping | None = None
    """Comes at the end."""
    failed: str = ""
    """Why it failed."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def packed(message: Message) -> bytes:
    """One message in bytes: its length, and MessagePack."""
    data = _encode(message)
    return _LENGTH.pack(len(data)) + data


class Unpacker:
    """Messages out of bytes cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete now. msgspec.DecodeError for bytes that are none."""
        data = self._rest + data
        at = 0
        while len(data) - at >= _LENGTH.size:
            begin = at + _LENGTH.size
            end = begin + _LENGTH.unpack_from(data, at)[0]
            if end > len(data):
                break
            yield _decode(data[begin:end])
            at = end
        self._rest = data[at:]


STOP = b"stop"
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What reaches a whole group of processes: a Ctrl-C, a closed terminal, `timeout`, a service's stop."""
_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class OpenShare:
    """One process's part of an open loop."""

    planned: tuple[Planned, ...]
    until_s: float = math.inf
    """As for `drive`."""


@dataclass(frozen=True, slots=True)
class ClosedShare:
    """One process's part of a closed loop."""

    closed: Closed
    """With this process's streams only."""
    plan: Callable[[], Iterator[Planned]]
    """Every process makes the whole plan, and takes each `of`-th request from `first` on."""
    first: int
    of: int

    def planned(self) -> Iterator[Planned]:
        """The requests of this process."""
        return itertools.islice(self.plan(), self.first, None, self.of)


@dataclass(frozen=True, slots=True)
class Job:
    """What a client process is to do."""

    share: OpenShare | ClosedShare
    target: Target
    settings: Client


def main(orders: Connection, results: Connection) -> None:
    """Take a `Job` and a start time from `orders`, and send messages to `results` until all is over.

    `orders` closes when the parent dies, however it does; this process then ends too.
    """
    for number in IGNORED:  # It is the parent that decides what they mean, and stops this process in order.
        signal.signal(number, signal.SIG_IGN)
    try:
        job = cast(Job, orders.recv())
        _tell(results, packed(Message()))
        begin = orders.recv()
    except (EOFError, OSError):
        return
    if begin == STOP:
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(job, cast(float, begin), orders, results))


def _tell(results: Connection, data: bytes) -> None:
    while data:
        data = data[os.write(results.fileno(), data) :]


class _Results(asyncio.BaseProtocol):
    """The pipe to the parent: written to without ever waiting, since a client that waits is late."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


async def _run(job: Job, begin: float, orders: Connection, results: Connection) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(_Results, results)
    stop = asyncio.Event()
    loop.add_reader(orders.fileno(), _ordered, orders, stop)
    try:
        timekeeping = await _driven(job, begin, lambda record: transport.write(packed(Message(record))), stop)
        transport.write(packed(Message(timekeeping=timekeeping)))
    except SpoiledError as error:
        transport.write(packed(Message(failed=str(error))))
    except Exception as error:
        first = _first(error)
        transport.write(packed(Message(failed=f"{type(first).__name__}: {first}"[:_SHOWN])))
        raise
    finally:
        transport.close()  # After all that is written is read.
        await protocol.closed
        loop.remove_reader(orders.fileno())


async def _driven(job: Job, begin: float, emit: Callable[..., None], stop: asyncio.Event) -> Timekeeping:
    share = job.share
    if isinstance(share, OpenShare):
        until_s = share.until_s
        return await drive(share.planned, job.target, job.settings, begin, emit, stop, until_s=until_s)
    return await drive_closed(share.closed, share.planned(), job.target, job.settings, begin, emit, stop)


def _ordered(orders: Connection, stop: asyncio.Event) -> None:
    try:
        orders.recv()
    except (EOFError, OSError):
        os._exit(1)  # The parent has died, and every stream is to be closed.
    stop.set()


def _first(error: BaseException) -> BaseException:
    """The error within a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


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
            target=main, args=(theirs, writing), name=f"loadtest-client-{number}", daemon=True
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
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
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
                one.send(STOP)

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
