"""The load: N workers in a closed loop, each sending its next request when its last is answered."""

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from benchmarks.common.process_tree import machine_busy_s, waited_s
from benchmarks.common.server_process import HOST, ServerProcess
from benchmarks.serving_overhead.client import ChatConnection, LoadError, Reply, chat_request
from benchmarks.serving_overhead.usage import Usage, read_usage

_MAX_TOKENS = 64
"""The length of every reply."""
_LEVEL_TIMEOUT_S = 600.0
_TOPICS = ("the tide", "a lighthouse", "small boats", "the moon", "salt", "a harbour", "gulls", "the weather")


@contextlib.contextmanager
def real_time() -> Iterator[bool]:
    """Run the block at the lowest real-time priority. Yields whether this user may (root, CAP_SYS_NICE).

    Processes started meanwhile do not inherit the priority.
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, *before)


@dataclass(frozen=True, slots=True)
class Level:
    """One step of the load: how many requests at once, and how many each worker sends."""

    concurrency: int
    requests: int
    warmup: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One server at one level in one round. Times in seconds, CPU in seconds or shares of one core."""

    server: str
    round: int
    concurrency: int
    requests: int
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
    client_cores: float
    client_wait: float
    """Share of the time that the client was ready to run but had no core: it saw replies late."""
    other_cores: float
    """CPU taken by anything that is neither this server nor the client, stolen time included."""


def prompts(first: int) -> Iterator[str]:
    """Short prompts, no two alike: the number comes first, so no cached prefix is ever shared."""
    for number in count(first):
        yield f"{number}: tell me about {_TOPICS[number % len(_TOPICS)]}."


async def measure(server: ServerProcess, model: str, level: Level, round_number: int) -> Measured:
    """Warm the server up, then load it. LoadError if any reply fails or is short."""
    # Far above the requests of one level, so that no prompt ever comes twice.
    source = prompts((round_number * 10_000 + level.concurrency) * 1_000_000)

    def batch(per_worker: int) -> list[list[bytes]]:
        return [
            [chat_request(HOST, server.port, model, next(source), _MAX_TOKENS) for _ in range(per_worker)]
            for _ in range(level.concurrency)
        ]

    warmup, timed = batch(level.warmup), batch(level.requests)
    workers = [_Worker(server.port) for _ in range(level.concurrency)]
    try:
        async with asyncio.timeout(_LEVEL_TIMEOUT_S):
            await _run(workers, warmup)
            gc.collect()
            gc.disable()
            usage_before = read_usage(server.processes())  # Outermost: reading a tree takes milliseconds.
            before = _clocks()
            with real_time():
                replies = await _run(workers, timed)
            spent = _clocks() - before
            usage = read_usage(server.processes()).since(usage_before)
    except TimeoutError:
        server.check_alive()
        raise LoadError(f"requests still unanswered after {_LEVEL_TIMEOUT_S:.0f} s") from None
    except LoadError:
        server.check_alive()  # A dead server is the better explanation.
        raise
    finally:
        gc.enable()
        for worker in workers:
            worker.close()
    return _summary(server.name, round_number, level.concurrency, replies, spent, usage)


async def wait_for_answer(server: ServerProcess, model: str, timeout_s: float) -> None:
    """Wait for a first complete reply: Ray Serve LLM lists its models before its engine is up."""
    request = chat_request(HOST, server.port, model, "Are you there?", _MAX_TOKENS)
    deadline = time.monotonic() + timeout_s
    while True:
        worker = _Worker(server.port)
        try:
            async with asyncio.timeout(timeout_s):
                await worker.run([request])
            return
        except (LoadError, TimeoutError) as error:
            server.check_alive()
            if time.monotonic() >= deadline:
                raise LoadError(f"no complete reply within {timeout_s:.0f} s: {error}") from None
        finally:
            worker.close()
        await asyncio.sleep(0.5)


class _Worker:
    """One closed loop over one connection, opened anew whenever the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: ChatConnection | None = None

    async def run(self, requests: list[bytes]) -> list[Reply]:
        replies = []
        for request in requests:
            connection = self._connection
            if connection is None or not connection.reusable:
                connection = self._connection = await self._connect()
            replies.append(await connection.ask(request, _MAX_TOKENS))
        return replies

    async def _connect(self) -> ChatConnection:
        self.close()
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(ChatConnection, HOST, self._port)
        except OSError as error:
            raise LoadError(f"cannot connect to port {self._port}: {error}") from None
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


async def _run(workers: list[_Worker], requests: list[list[bytes]]) -> list[Reply]:
    """All workers at once; the first failure cancels the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            pairs = zip(workers, requests, strict=True)
            tasks = [group.create_task(worker.run(mine)) for worker, mine in pairs]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [reply for task in tasks for reply in task.result()]


def _clocks() -> np.ndarray:
    """Seconds: of the wall, of this client's CPU, of all busy CPUs, of this client's waits for a core."""
    return np.array([time.perf_counter(), time.process_time(), machine_busy_s(), waited_s()])


def _summary(
    server: str, number: int, concurrency: int, replies: list[Reply], spent: np.ndarray, usage: Usage
) -> Measured:
    wall_s, client_s, machine_s, wait_s = spent.tolist()
    tokens = sum(reply.tokens for reply in replies)
    ttft_p50_s, ttft_p95_s = np.percentile([reply.ttft_s for reply in replies], (50, 95)).tolist()
    itl_p50_s, itl_p95_s = np.percentile([reply.itl_s for reply in replies], (50, 95)).tolist()
    return Measured(
        server=server,
        round=number,
        concurrency=concurrency,
        requests=len(replies),
        tokens_per_s=tokens / wall_s,
        ttft_p50_s=ttft_p50_s,
        ttft_p95_s=ttft_p95_s,
        itl_p50_s=itl_p50_s,
        itl_p95_s=itl_p95_s,
        longest_gap_p95_s=float(np.percentile([reply.longest_gap_s for reply in replies], 95)),
        tokens_per_arrival=tokens / sum(reply.arrivals for reply in replies),
        server_cpu_s_per_token=usage.total_s / tokens,
        cpu_s_per_token={name: seconds / tokens for name, seconds in usage.cpu_s.items()},
        client_cores=client_s / wall_s,
        client_wait=wait_s / wall_s,
        other_cores=max(0.0, (machine_s - client_s - usage.total_s) / wall_s),
    )
