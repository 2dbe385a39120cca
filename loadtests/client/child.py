"""A client process: drives its share of the requests and sends the records home."""

import asyncio
import itertools
import math
import os
import signal
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import cast

import msgspec
import uvloop

from loadtests.client.drive import drive, drive_closed
from loadtests.client.prompts import Target
from loadtests.client.request import SpoiledError
from loadtests.planned import Planned
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
