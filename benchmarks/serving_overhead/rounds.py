"""Alternating rounds: every server gets the same load again and again, in a rotating order."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import uvloop

from benchmarks.common.progress import say
from benchmarks.common.server_process import HOST, ServerProcess
from benchmarks.serving_overhead.client import LoadError
from benchmarks.serving_overhead.load import Level, Measured, measure, wait_for_answer
from benchmarks.serving_overhead.servers import OPEN_PAGES, WATCHED, Engine, Start

_START_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The servers, and the load that each gets."""

    servers: Sequence[str]
    engine: Engine
    levels: Sequence[Level]
    rounds: int
    settle_s: float
    """Between a server's first reply and its load. The second half of it measures idle CPU."""


@dataclass(frozen=True, slots=True)
class Started:
    """One start of one server."""

    server: str
    start_s: float
    """From starting the process to the first complete reply, seconds."""
    idle_cores: float
    """CPU taken without any request, in cores."""
    memory_bytes: int
    """Proportional set size, so that shared memory is counted once."""


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured, by server in the order of the plan."""

    starts: tuple[Started, ...]
    measurements: tuple[Measured, ...]


def run(plan: Plan, work: Path, out: Path) -> Results:
    """Measure each server in each round, freshly started, with no other server up.

    Args:
        plan: The servers and their load.
        work: A folder with a short path for the servers' temporary files.
        out: A folder for their logs and for `measurements.jsonl`, written as it goes.

    Raises:
        LoadError: if a reply fails or is short.
        ServerError: if a server does not start, or dies.
    """
    starts, measurements = [], []
    with (out / "measurements.jsonl").open("w", encoding="utf-8") as lines:
        for number in range(1, plan.rounds + 1):
            for name in rotated(plan.servers, number - 1):
                start = Start(name, plan.engine, work / f"{number}-{name}")
                began = time.monotonic()
                server = start.server(out / "logs" / f"{number:02}-{name}.log")
                try:
                    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                        server.wait_ready(start.ready_path, _START_TIMEOUT_S)
                        model = plan.engine.served_model_name
                        runner.run(wait_for_answer(server, model, _START_TIMEOUT_S))
                        starts.append(_settle(server, time.monotonic() - began, plan.settle_s))
                        for level in plan.levels:
                            measured = runner.run(_measured(server, model, level, number))
                            measurements.append(measured)
                            print(json.dumps(asdict(measured)), file=lines, flush=True)
                            _tell(measured)
                finally:
                    server.stop()
    return Results(tuple(starts), tuple(measurements))


async def _measured(server: ServerProcess, model: str, level: Level, number: int) -> Measured:
    async with open_pages(server.port, OPEN_PAGES if server.name == WATCHED else 0):
        return await measure(server, model, level, number)


@asynccontextmanager
async def open_pages(port: int, count: int) -> AsyncIterator[None]:
    """Read the fleet's state on `count` connections, as open pages do. LoadError if one of them ends."""

    async def read(session: aiohttp.ClientSession) -> None:
        async with session.get("/autoscaling/events", raise_for_status=True) as reply:
            async for _ in reply.content.iter_any():
                pass

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(f"http://{HOST}:{port}", timeout=timeout) as session:
        pages = [asyncio.create_task(read(session)) for _ in range(count)]
        try:
            yield
            if any(page.done() for page in pages):
                raise LoadError("a page lost its stream of events")
        finally:
            for page in pages:
                page.cancel()


def _settle(server: ServerProcess, start_s: float, settle_s: float) -> Started:
    time.sleep(settle_s / 2)
    before, began = server.cpu_seconds(), time.monotonic()
    time.sleep(settle_s / 2)
    idle_cores = (server.cpu_seconds() - before) / (time.monotonic() - began)
    memory_bytes = server.memory_bytes()
    memory = f"{memory_bytes / 2**30:.1f} GiB"
    say(f"{server.name}: up after {start_s:.1f} s, {memory}, idle {idle_cores:.2f} cores")
    return Started(server.name, start_s, idle_cores, memory_bytes)


def _tell(m: Measured) -> None:
    say(
        f"round {m.round}  {m.server:15} c={m.concurrency:<3} {m.tokens_per_s:7.0f} tok/s  "
        f"TTFT {m.ttft_p50_s * 1e3:6.1f} / {m.ttft_p95_s * 1e3:6.1f} ms  ITL {m.itl_p50_s * 1e3:5.2f} ms  "
        f"CPU {m.server_cpu_s_per_token * 1e3:5.3f} ms/token  client {m.client_cores:4.0%} "
        f"(waits {m.client_wait:4.1%})  others {m.other_cores:4.0%}"
    )


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The names, starting from another one each round, so that none always goes first."""
    at = by % len(names)
    return [*names[at:], *names[:at]]
