"""Client processes that share the requests of a run: one keeps time at some hundred streams."""

import asyncio
import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import signal
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Self, cast

import msgspec
import uvloop

from loadtests.client.drive import drive, drive_closed
from loadtests.client.pacer import worst
from loadtests.client.prompts import Target
from loadtests.client.request import SpoiledError
from loadtests.plan import Planned
from loadtests.record import Record, Timekeeping
from loadtests.scenario import Client, Closed

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals to a whole group of processes: a Ctrl-C, a closed terminal, `timeout`, a service's stop."""
_STOP = b"stop"
_LONGEST_ERROR = 2000
_READ_BYTES = 2**20
_READS = 16
"""Reads from one process in one poll: 16 MiB, some 0.2 s of work, so that the screen is drawn in between."""
_GRACE_S = 2.0
_LENGTH = struct.Struct("<I")

Work = Callable[[float, Callable[[Record], None], asyncio.Event], Coroutine[Any, Any, Timekeeping]]
"""Drives a share of the requests, given the start of the run, a function that takes records, and a stop
event."""


class Message(msgspec.Struct, array_like=True):
    """A message of a client process to its parent. Without any field, the process is ready to begin."""

    record: Record | None = None
    timekeeping: Timekeeping | None = None
    """Comes at the end."""
    failed: str = ""
    """Why it failed."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def pack(message: Message) -> bytes:
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


def main(orders: Connection, results: Connection) -> None:
    """A client process: take work and a start time from `orders`, and send messages to `results` to the end.

    `orders` closes when the parent dies, however it does; this process then ends too.
    """
    for number in IGNORED:  # The parent handles signals, and stops this process in order.
        signal.signal(number, signal.SIG_IGN)
    try:
        work = cast(Work, orders.recv())
        ready = pack(Message())
        while ready:
            ready = ready[os.write(results.fileno(), ready) :]
        begin = orders.recv()
    except (EOFError, OSError):
        return
    if begin != _STOP:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(work, cast(float, begin), orders, results))


class _Results(asyncio.BaseProtocol):
    """The pipe to the parent: written to without ever waiting, since a client that waits is late."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


async def _run(work: Work, begin: float, orders: Connection, results: Connection) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(_Results, results)
    stop = asyncio.Event()
    loop.add_reader(orders.fileno(), _take_order, orders, stop)
    try:
        timekeeping = await work(begin, lambda record: transport.write(pack(Message(record))), stop)
        transport.write(pack(Message(timekeeping=timekeeping)))
    except SpoiledError as error:
        transport.write(pack(Message(failed=str(error))))
    except Exception as error:
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        transport.write(pack(Message(failed=f"{type(first).__name__}: {first}"[:_LONGEST_ERROR])))
        raise
    finally:
        transport.close()  # once all that was written is read
        await protocol.closed
        loop.remove_reader(orders.fileno())


def _take_order(orders: Connection, stop: asyncio.Event) -> None:
    try:
        orders.recv()
    except (EOFError, OSError):
        os._exit(1)  # The parent has died, and every stream is to be closed.
    stop.set()


class _Child:
    """One process, as its parent sees it."""

    def __init__(self, number: int, work: Work) -> None:
        self.number, self._work = number, work
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
        self.timekeeping: Timekeeping | None = None
        self.failed = ""

    def start(self) -> None:
        self.process.start()
        for end in self._theirs:  # Else this process would hold open what only the child may.
            end.close()
        os.set_blocking(self._results.fileno(), False)

    def send(self, order: object) -> None:
        """Send a start time, or the order to stop. `poll` notices a process that has died."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._orders.send(order)

    def send_work(self) -> None:
        self.send(self._work)

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
                self._end()
                break
            for message in self._unpacker.feed(data):
                self.ready = True
                if message.record is not None:
                    found.append(message.record)
                elif message.timekeeping is not None:
                    self.timekeeping = message.timekeeping
                elif message.failed:
                    self.failed = f"client process {self.number} failed: {message.failed}"
        return found

    def _end(self) -> None:
        """Note that it closed its pipe: at its end, or because it died."""
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

    Only `start` and `close` wait for a client.
    """

    def __init__(self, shares: Sequence[Work]) -> None:
        self._children = [_Child(number, work) for number, work in enumerate(shares)]
        self._stopped = False

    @classmethod
    def of_open_loop(
        cls, planned: Sequence[Planned], target: Target, settings: Client, until_s: float = math.inf
    ) -> Self:
        """Deal the requests out in turn, by their times. `until_s` as for `drive`."""
        shares = deal(planned, settings.processes)
        return cls([functools.partial(drive, share, target, settings, until_s=until_s) for share in shares])

    @classmethod
    def of_closed_loop(
        cls, closed: Closed, plan: Callable[[], Iterator[Planned]], target: Target, settings: Client
    ) -> Self:
        """Deal the streams out. Each process calls `plan`, which must be picklable, and takes its share."""
        count = min(settings.processes, closed.streams)
        shares = [
            closed.model_copy(update={"streams": len(range(number, closed.streams, count))})
            for number in range(count)
        ]
        return cls(
            [
                functools.partial(_drive_share, plan, number, count, share, target, settings)
                for number, share in enumerate(shares)
            ]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the processes and give each its share, about a second. They wait for `begin`."""
        resource_tracker.ensure_running()  # Started below, it would unblock the signals.
        # A signal that comes before a child ignores it would kill the child; here it is only delayed.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
        try:
            for one in self._children:
                one.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for one in self._children:
            one.send_work()

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
                one.send(_STOP)

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
        """End every process that still runs, at once."""
        for one in self._children:
            one.close()


def deal(planned: Sequence[Planned], processes: int) -> list[tuple[Planned, ...]]:
    """The requests of each process, in turn by their times; one process where there are no requests."""
    ordered = sorted(planned, key=lambda one: one.at_s)
    count = max(1, min(processes, len(ordered)))
    return [tuple(ordered[number::count]) for number in range(count)]


async def _drive_share(
    plan: Callable[[], Iterator[Planned]],
    first: int,
    of: int,
    closed: Closed,
    target: Target,
    settings: Client,
    begin: float,
    emit: Callable[[Record], None],
    stop: asyncio.Event,
) -> Timekeeping:
    """Every process makes the whole plan, and takes each `of`-th request from `first` on."""
    planned = itertools.islice(plan(), first, None, of)
    return await drive_closed(closed, planned, target, settings, begin, emit, stop)
