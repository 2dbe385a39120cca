"""Two processes, an engine's and an ingress', and one channel between them."""

import asyncio
import contextlib
import importlib
import multiprocessing
import resource
import time
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from benchmarks.transport.pieces import Consumer, head, tail
from loadtests.columns import percentile

STEP_S = 0.010
_WARM_UP = 1 / 6  # of the seconds of a measurement, before it
_SILENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement. `paced`: a step every `STEP_S`; otherwise one as soon as the channel takes it."""

    candidate: str
    streams: int
    paced: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Side:
    """One process: steps in all, and since its warm-up tokens, seconds, and CPU per token of all threads."""

    steps: int
    tokens: int
    wall_s: float
    cpu_per_token_s: float
    p50_s: float = 0.0
    p99_s: float = 0.0


_Main = Callable[[Connection, Plan], Coroutine[Any, Any, None]]


def measure(plan: Plan) -> tuple[Side, Side]:
    """The engine's and the ingress' side. RuntimeError if a piece was lost, or a process ended."""
    with _process(_engine, plan) as engine, _process(_ingress, plan) as ingress:
        for _ in ("the port", "the end of the warm-up"):
            ingress.send(_hear(engine, plan))
        received: Side = _hear(ingress, plan)
        engine.send("the ingress has everything")
        sent: Side = _hear(engine, plan)
    if sent.steps != received.steps:
        raise RuntimeError(f"{plan}: {sent.steps} steps were sent and {received.steps} received")
    return sent, received


def _hear(pipe: Connection, plan: Plan) -> Any:
    with contextlib.suppress(EOFError):
        if pipe.poll(plan.seconds + _SILENCE_S):
            return pipe.recv()
    raise RuntimeError(f"{plan}: a process ended or stands still")


@contextlib.contextmanager
def _process(main: _Main, plan: Plan) -> Iterator[Connection]:
    spawn = multiprocessing.get_context("spawn")  # gRPC's threads do not survive a fork
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_run, args=(main, theirs, plan), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()
        ours.close()


def _run(main: _Main, pipe: Connection, plan: Plan) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(pipe, plan))


async def _engine(pipe: Connection, plan: Plan) -> None:
    channel = importlib.import_module(f"benchmarks.transport.{plan.candidate}")
    await channel.send(plan.streams, _steps(pipe, plan), pipe.send)


async def _steps(pipe: Connection, plan: Plan) -> AsyncIterator[list[bytes]]:
    """The pieces of every step, those of the warm-up included; at last the empty step that is the end."""
    heads = [head(stream) for stream in range(plan.streams)]
    step = warm = 0  # warm: the first step after the warm-up
    for seconds in (_WARM_UP * plan.seconds, plan.seconds):
        began_s, cpu_s = time.monotonic(), time.process_time()
        due, warm = began_s, step
        while due < began_s + seconds:
            rest = tail(step, time.monotonic_ns())
            yield [start + rest for start in heads]
            step += 1
            now = time.monotonic()
            due = max(due + STEP_S, now) if plan.paced else now  # what comes too late is not made up for
            if plan.paced:
                await asyncio.sleep(due - now)
        if not warm:
            pipe.send("warm")
    tokens, wall_s = plan.streams * (step - warm), time.monotonic() - began_s
    yield []
    await asyncio.to_thread(pipe.recv)
    pipe.send(Side(step, tokens, wall_s, (time.process_time() - cpu_s) / tokens))


async def _ingress(pipe: Connection, plan: Plan) -> None:
    latencies = array("q")
    consumers = [Consumer(stream, latencies) for stream in range(plan.streams)]
    channel = importlib.import_module(f"benchmarks.transport.{plan.candidate}")
    receiving = asyncio.create_task(channel.receive(pipe.recv(), consumers))
    await asyncio.to_thread(pipe.recv)  # the engine is warm
    before, began_s, cpu_s = len(latencies), time.monotonic(), time.process_time()
    await receiving
    wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    taken = sorted(latencies[before:])
    p50_s, p99_s = (percentile(taken, at) / 1e9 for at in (0.50, 0.99))
    steps = min(consumer.steps for consumer in consumers)
    pipe.send(Side(steps, len(taken), wall_s, cpu_s / len(taken), p50_s, p99_s))
