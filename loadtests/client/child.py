"""A client process: drives its share of the requests and sends the records home."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import cast

import uvloop

from loadtests.client.drive import drive, drive_closed
from loadtests.client.request import SpoiledError
from loadtests.client.target import Target
from loadtests.client.wire import packed
from loadtests.planned import Planned
from loadtests.record import Timekeeping
from loadtests.scenario import Client, Closed

STOP = b"stop"
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What reaches a whole group of processes: a Ctrl-C, a closed terminal, `timeout`, a service's stop."""
_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class OpenShare:
    """One process's part of an open loop."""

    planned: tuple[Planned, ...]


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
    """Take a `Job` and a beginning from `orders`, and send messages to `results` until all is over.

    `orders` closes when the parent dies, however it does; this process then ends too.
    """
    for number in IGNORED:  # It is the parent that decides what they mean, and stops this process in order.
        signal.signal(number, signal.SIG_IGN)
    try:
        job = cast(Job, orders.recv())
        _tell(results, packed(None))
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
        timekeeping = await _driven(job, begin, lambda record: transport.write(packed(record)), stop)
        transport.write(packed(timekeeping))
    except SpoiledError as error:
        transport.write(packed(str(error)))
    except Exception as error:
        first = _first(error)
        transport.write(packed(f"{type(first).__name__}: {first}"[:_SHOWN]))
        raise
    finally:
        transport.close()  # After all that is written is read.
        await protocol.closed
        loop.remove_reader(orders.fileno())


async def _driven(job: Job, begin: float, emit: Callable[..., None], stop: asyncio.Event) -> Timekeeping:
    share = job.share
    if isinstance(share, OpenShare):
        return await drive(share.planned, job.target, job.settings, begin, emit, stop)
    return await drive_closed(share.closed, share.planned(), job.target, job.settings, begin, emit, stop)


def _ordered(orders: Connection, stop: asyncio.Event) -> None:
    try:
        orders.recv()
    except (EOFError, OSError):
        os._exit(1)  # The parent is gone: nobody is left to tell, and every stream is to be closed.
    stop.set()


def _first(error: BaseException) -> BaseException:
    """The error within a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
