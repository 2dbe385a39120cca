"""The replica's end of the nursery: starts it, again if it has ended, and waits for its answers."""

import asyncio
import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from serve_app.engine.grammar.nursery import Answer, Job, Work, fork_nursery

logger = logging.getLogger("ray.serve")

_ACCEPT_S = 30.0
"""Bound on the time until the nursery takes a job, its own start included (2 s with a vocabulary of 128,000).
A nursery that takes longer is stopped or hangs, and is replaced."""
_REAPED_WITHIN_S = 0.2
_MOST_WALL = 10.0
"""Wall-clock seconds per CPU second, on a machine that is busy with other requests."""


class NurseryEndedError(Exception):
    """The nursery ended, or could not be started, before it answered."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    accepted: asyncio.Future[None]
    answer: asyncio.Future[Answer]


class NurseryClient:
    """Runs jobs in a nursery, which it starts if there is none.

    Args:
        prepare: Called in the nursery; returns what runs each job.
        cpu_s: CPU seconds that a job may take.
        memory_bytes: Memory that it may take.
    """

    def __init__(self, prepare: Callable[[], Work], cpu_s: float, memory_bytes: int) -> None:
        self._prepare = prepare
        self._cpu_s = cpu_s
        self._memory_bytes = memory_bytes
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        # Sending a large job waits until the nursery reads it.
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="grammar-guard")
        self.pid = 0
        self._connection: Connection | None = None

    def start(self) -> None:
        """Fork the nursery now, before the process has grown. If that fails, the first job tries again."""
        with suppress(NurseryEndedError):
            self._started()

    def stop(self) -> None:
        """End the nursery and every job in it."""
        if self._connection is not None:
            self._lost(self._connection)
        self._sender.shutdown(wait=False)

    async def run(self, payload: bytes) -> Answer:
        """Return the answer to `payload`; its job is cancelled with the caller.

        Raises:
            TimeoutError: the machine was too busy for it.
            NurseryEndedError: twice.
        """
        try:
            return await self._run(payload)
        except NurseryEndedError:
            return await self._run(payload)  # the job of another request may have ended it

    async def _run(self, payload: bytes) -> Answer:
        connection = self._started()
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        waiting = self._waiting[number] = _Waiting(loop.create_future(), loop.create_future())
        try:
            sent = loop.run_in_executor(self._sender, _send, connection, Job(number, payload))
            if not await _within(_ACCEPT_S, sent) or not await _within(_ACCEPT_S, waiting.accepted):
                logger.warning("the process that compiles grammars does not answer")
                self._lost(connection)
                raise NurseryEndedError
            if not await _within(self._cpu_s * _MOST_WALL, waiting.answer):
                raise TimeoutError
            return waiting.answer.result()
        finally:
            del self._waiting[number]
            if not waiting.answer.done() and connection is self._connection:
                self._sender.submit(_send, connection, Job(number))

    def _started(self) -> Connection:
        if self._connection is None:
            try:
                self.pid, self._connection = fork_nursery(self._prepare, self._cpu_s, self._memory_bytes)
            except OSError as error:  # no process or no memory: the engine's other requests go on
                logger.warning("the process that compiles grammars cannot be started: %s", error)
                raise NurseryEndedError from error
            asyncio.get_running_loop().add_reader(self._connection.fileno(), self._receive, self._connection)
        return self._connection

    def _receive(self, connection: Connection) -> None:
        try:
            answer = msgspec.msgpack.decode(connection.recv_bytes(), type=Answer)
        except (EOFError, OSError):
            logger.warning("the process that compiles grammars ended; the next one to compile starts another")
            self._lost(connection)
            return
        waiting = self._waiting.get(answer.number)
        if waiting is None:
            return
        if not waiting.accepted.done():
            waiting.accepted.set_result(None)
        if not answer.begun and not waiting.answer.done():
            waiting.answer.set_result(answer)

    def _lost(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        asyncio.get_running_loop().remove_reader(connection.fileno())
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _reap(self.pid)
        connection.close()
        for waiting in self._waiting.values():
            for future in (waiting.accepted, waiting.answer):
                if not future.done():
                    future.set_exception(NurseryEndedError())
                    future.exception()  # two futures, of which one is awaited


def _reap(pid: int) -> None:
    """Take note of the end of a process that has been killed.

    It ends within a millisecond unless the kernel waits for a device or a file system. The event loop does
    not wait for that.
    """
    end = time.monotonic() + _REAPED_WITHIN_S
    with suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                logger.warning("process %d, which compiled grammars, was killed and does not end", pid)
                threading.Thread(target=_reap_late, args=(pid,), daemon=True).start()
                return
            time.sleep(0.001)


def _reap_late(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


async def _within(seconds: float, future: asyncio.Future[Any]) -> bool:
    """Return whether `future` ends in time; raise what it raises. One that does not end is left alone."""
    done, _ = await asyncio.wait([future], timeout=seconds)
    if done:
        future.result()
    return bool(done)


def _send(connection: Connection, job: Job) -> None:
    with suppress(OSError):  # the nursery has ended, which `_receive` notices
        connection.send_bytes(msgspec.msgpack.encode(job))
