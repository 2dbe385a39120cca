"""The load: N workers in a closed loop, each sending its next request when its last is answered."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.chaos.cpu_by_process import Reading, read
from benchmarks.common.process_tree import machine_busy_s, waited_s
from benchmarks.common.server_process import HOST, ServerProcess
from benchmarks.serving_overhead.client import ChatConnection, LoadError, Reply, chat_request


def can_raise() -> bool:
    """Whether this user may (root or CAP_SYS_NICE). Without it, watch the report's `client waits`."""
    try:
        with raised():
            return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
    except OSError:
        return False


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Run the block at the lowest real-time priority where allowed; processes it starts do not inherit it."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


_TOPICS = ("the tide", "a lighthouse", "small boats", "the moon", "salt", "a harbour", "gulls", "the weather")


@dataclass(frozen=True, slots=True)
class Level:
    """One step of the load: how many requests at once, and how many each worker sends."""

    concurrency: int
    requests_per_worker: int
    warmup_per_worker: int


@dataclass(frozen=True, slots=True)
class Load:
    """What every server gets: the same requests at the same levels."""

    model: str
    max_tokens: int
    levels: tuple[Level, ...]
    timeout_s: float
    """Bound on one level, warm-up included."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One server at one level in one round. Times in seconds, CPU in seconds or shares of one core."""

    server: str
    round: int
    concurrency: int
    requests: int
    tokens: int
    wall_s: float
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    itl_p50_s: float
    itl_p95_s: float
    longest_gap_p95_s: float
    tokens_per_arrival: float
    """How much came at once, through coalescing or through waiting."""
    server_cpu_s_per_token: float
    cpu_s_per_token: dict[str, float]
    """The same by process."""
    server_cores: float
    client_cores: float
    client_wait: float
    """Share of the time that the client was ready to run but had no core: it saw replies late."""
    other_cores: float
    """CPU taken by anything that is neither this server nor the client, stolen time included."""


def prompts(first: int) -> Iterator[str]:
    """Short prompts, no two alike: the number comes first, so no cached prefix is ever shared."""
    number = first
    while True:
        yield f"{number}: tell me about {_TOPICS[number % len(_TOPICS)]}."
        number += 1


async def measure(server: ServerProcess, load: Load, level: Level, round_number: int) -> Measured:
    """Warm the server up, then load it. LoadError if any reply fails or is short."""
    per_level = 1_000_000  # Far above the requests of one level, so that no prompt ever comes twice.
    number = (round_number * 100 + load.levels.index(level)) * per_level
    source = prompts(number)

    def batch(per_worker: int) -> list[list[bytes]]:
        return [
            [
                chat_request(HOST, server.port, load.model, next(source), load.max_tokens)
                for _ in range(per_worker)
            ]
            for _ in range(level.concurrency)
        ]

    warmup, timed = batch(level.warmup_per_worker), batch(level.requests_per_worker)
    workers = [_Worker(server.port) for _ in range(level.concurrency)]
    try:
        async with asyncio.timeout(load.timeout_s):
            await _run(workers, warmup, load.max_tokens)
            gc.collect()
            gc.disable()
            server_before = read(server.processes())  # Outermost: reading a tree takes milliseconds.
            before = _Clocks.read()
            with raised():
                replies = await _run(workers, timed, load.max_tokens)
            used = _Clocks.read().since(before)
            server_used = read(server.processes()).since(server_before)
    except TimeoutError:
        server.check_alive()
        waiting = sum(worker.waiting for worker in workers)
        raise LoadError(f"{waiting} requests still unanswered after {load.timeout_s:.0f} s") from None
    except LoadError:
        server.check_alive()  # A dead server is the better explanation.
        raise
    finally:
        gc.enable()
        for worker in workers:
            worker.close()
    return _summary(server.name, round_number, level.concurrency, replies, used, server_used)


async def wait_answer(server: ServerProcess, load: Load, timeout_s: float) -> None:
    """Wait for a first complete reply: Ray Serve LLM lists its models before its engine is up."""
    request = chat_request(HOST, server.port, load.model, "Are you there?", load.max_tokens)
    deadline = time.monotonic() + timeout_s
    while True:
        worker = _Worker(server.port)
        try:
            async with asyncio.timeout(timeout_s):
                await worker.run([request], load.max_tokens)
            return
        except (LoadError, TimeoutError) as error:
            server.check_alive()
            if time.monotonic() >= deadline:
                raise LoadError(
                    f"no complete reply within {timeout_s:.0f} s; the last problem: {error}"
                ) from None
        finally:
            worker.close()
        await asyncio.sleep(0.5)


class _Worker:
    """One closed loop over one connection, opened anew whenever the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: ChatConnection | None = None
        self.waiting = 0

    async def run(self, requests: list[bytes], expected_tokens: int) -> list[Reply]:
        replies = []
        for request in requests:
            connection = self._connection
            if connection is None or not connection.reusable:
                connection = self._connection = await self._connect()
            self.waiting = 1
            replies.append(await connection.ask(request, expected_tokens))
            self.waiting = 0
        return replies

    async def _connect(self) -> ChatConnection:
        self.close()
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                ChatConnection, HOST, self._port
            )
        except OSError as error:
            raise LoadError(f"cannot connect to port {self._port}: {error}") from None
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


async def _run(workers: list[_Worker], requests: list[list[bytes]], expected_tokens: int) -> list[Reply]:
    """All workers at once; the first failure cancels the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(worker.run(mine, expected_tokens))
                for worker, mine in zip(workers, requests, strict=True)
            ]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [reply for task in tasks for reply in task.result()]


@dataclass(frozen=True, slots=True)
class _Clocks:
    """Seconds: of the wall, of this client's CPU, of all busy CPUs, of this client's waits for a core."""

    wall_s: float
    client_s: float
    machine_s: float
    waited_s: float

    @classmethod
    def read(cls) -> _Clocks:
        return cls(time.perf_counter(), time.process_time(), machine_busy_s(), waited_s())

    def since(self, before: _Clocks) -> _Clocks:
        return _Clocks(
            self.wall_s - before.wall_s,
            self.client_s - before.client_s,
            self.machine_s - before.machine_s,
            self.waited_s - before.waited_s,
        )


def _summary(
    server: str,
    round_number: int,
    concurrency: int,
    replies: list[Reply],
    used: _Clocks,
    cpu: Reading,
) -> Measured:
    tokens = sum(reply.tokens for reply in replies)
    server_cpu_s = cpu.total_s
    ttft_p50_s, ttft_p95_s = np.percentile([reply.ttft_s for reply in replies], (50, 95)).tolist()
    itl_p50_s, itl_p95_s = np.percentile([reply.itl_s for reply in replies], (50, 95)).tolist()
    return Measured(
        server=server,
        round=round_number,
        concurrency=concurrency,
        requests=len(replies),
        tokens=tokens,
        wall_s=used.wall_s,
        tokens_per_s=tokens / used.wall_s,
        ttft_p50_s=ttft_p50_s,
        ttft_p95_s=ttft_p95_s,
        itl_p50_s=itl_p50_s,
        itl_p95_s=itl_p95_s,
        longest_gap_p95_s=float(np.percentile([reply.longest_gap_s for reply in replies], 95)),
        tokens_per_arrival=tokens / sum(reply.arrivals for reply in replies),
        server_cpu_s_per_token=server_cpu_s / tokens,
        cpu_s_per_token={name: seconds / tokens for name, seconds in cpu.cpu_s.items()},
        server_cores=server_cpu_s / used.wall_s,
        client_cores=used.client_s / used.wall_s,
        client_wait=used.waited_s / used.wall_s,
        other_cores=max(0.0, (used.machine_s - used.client_s - server_cpu_s) / used.wall_s),
    )
