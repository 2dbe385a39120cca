"""Losses in a row: what may be lost next, and a run over processes that only have an application's titles.

The processes, the signals, the load's own process and HTTP are real; what serves is a stub, which no loss
disturbs.
"""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psutil
import pytest
from aiohttp import web

from benchmarks.chaos.attack import Attack, Conductor, Timing
from benchmarks.chaos.continuity import judge
from benchmarks.chaos.greedy import Heard
from benchmarks.chaos.load import Job
from benchmarks.chaos.losses import LossesInARow, Plan, attacks, still_serving, suspended, victims
from benchmarks.chaos.observed import Event, Look, Process, Trace
from benchmarks.chaos.observer import observing
from benchmarks.chaos.processes import Processes

TITLED = "import os, sys; os.execv('/bin/sleep', [sys.argv[1], '600'])"
ENGINE = """
import subprocess, sys, os
subprocess.Popen([sys.executable, "-IS", "-c", sys.argv[1], "VLLM::EngineCore"])
os.execv("/bin/sleep", ["ray::ServeReplica:tideserve:Engine-stub", "600"])
"""
APPLICATION = """
import subprocess, sys, time
def start():
    return subprocess.Popen([sys.executable, "-IS", "-c", sys.argv[1], sys.argv[2]], process_group=0)
running = [start() for _ in range(3)]
time.sleep(600)
"""


def process(pid: int, role: str, group: int, node: str = "", began: float = 0.0) -> Process:
    return Process(pid, group, role, node, began or pid, True)


LOOK = Look(
    9.0,
    (
        process(1, "engine-replica", 1, "worker-1"), process(2, "engine-core", 1, "worker-1"),
        process(3, "engine-replica", 3, "worker-2"), process(4, "engine-core", 3, "worker-2"),
        process(5, "engine-replica", 5, "worker-2"), process(6, "engine-core", 5, "worker-2"),
        process(7, "raylet", 7, "worker-1"), process(8, "raylet", 8, "worker-2"),
        process(9, "raylet", 9, "head"),
    ),
)  # fmt: skip


def test_an_engine_is_lost_while_another_serves() -> None:
    assert victims(LOOK, Attack("engine-replica", "kill"), 3) == [(1, 1), (3, 1), (5, 1)]
    assert victims(LOOK, Attack("engine-core", "stop"), 2) == [(2, 1), (4, 1)]  # the youngest still loads
    assert victims(LOOK, Attack("engine-core", "stop"), 1) == []


def test_a_node_is_lost_while_an_engine_serves_elsewhere() -> None:
    assert victims(LOOK, Attack("raylet", "kill", "worker-2"), 3) == [(8, 2)]
    assert victims(LOOK, Attack("raylet", "kill", "head"), 3) == []  # no engine goes with it
    assert victims(LOOK, Attack("raylet", "kill", "worker-1"), 1) == []


def test_engines_whose_raylet_stands_still_may_be_given_up_and_are_not_counted_on() -> None:
    stopped = Process(7, 7, "raylet", "worker-1", 7.0, False)
    look = Look(9.0, tuple(stopped if one.pid == 7 else one for one in LOOK.processes))

    assert (suspended(LOOK), suspended(look)) == (frozenset(), {"worker-1"})
    assert victims(look, Attack("engine-replica", "kill"), 3) == [(3, 1), (5, 1)]
    assert victims(look, Attack("raylet", "stop", "worker-2"), 3) == []
    assert victims(look, Attack("raylet", "stop", "worker-1"), 3) == []  # it stands still already


def test_an_engine_that_was_just_lost_is_not_counted_whether_it_has_been_missed_or_not() -> None:
    assert still_serving(3, []) == 3
    assert still_serving(3, [(1, 3)]) == 2  # stopped: nobody knows of it yet
    assert still_serving(2, [(1, 3)]) == 2  # killed, which shows at once
    assert still_serving(3, [(1, 3), (1, 2)]) == 1
    assert still_serving(2, [(1, 3), (1, 2)]) == 1
    assert still_serving(1, [(1, 3), (1, 2)]) == 1
    assert still_serving(1, [(2, 3)]) == 1


def test_what_is_drawn_from_are_engines_in_two_ways_and_workers() -> None:
    assert attacks(("engine-core",), ("kill", "stop"), ()) == [
        Attack("engine-core", "kill"), Attack("engine-core", "stop"),
    ]  # fmt: skip
    assert attacks(("engine-replica", "raylet"), ("kill",), ("w-1", "w-2")) == [
        Attack("engine-replica", "kill"), Attack("raylet", "kill", "w-1"), Attack("raylet", "kill", "w-2"),
    ]  # fmt: skip


class Server:
    engines = 3

    def ended(self) -> str | None:
        return None

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def restore(self, event: Event) -> None: ...


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    same = {"id": "c-1", "created": 17}
    for _ in range(body["max_tokens"]):
        event = {**same, "choices": [{"delta": {"content": body["messages"][0]["content"][-4:]}}]}
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await asyncio.sleep(0)
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), body["max_tokens"])
    last = f"data: {json.dumps({**same, 'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"
    await response.write(last.encode())
    return response


async def answer(_: web.Request) -> web.Response:
    return web.json_response({"models": {"stub": {"state": "up", "replicas": 3}}})


@asynccontextmanager
async def stub() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", answer)
    app.router.add_get("/ready", answer)
    app.router.add_get("/health", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
def processes() -> Iterator[Processes]:
    leader = subprocess.Popen([sys.executable, "-IS", "-c", APPLICATION, ENGINE, TITLED])
    tree = psutil.Process(leader.pid)
    try:
        yield Processes([leader.pid], {leader.pid: "head"})
    finally:
        for one in [tree, *tree.children(recursive=True)]:
            one.kill()
        leader.wait()


async def test_a_run_loses_as_many_as_were_asked_for_and_hears_every_stream(processes: Processes) -> None:
    trace, heard = Trace(), list[Heard]()
    async with (
        stub() as url,
        observing(
            processes, Job(url, {}, "stub", 6, 20), trace, "benchmarks.chaos.greedy_load", heard
        ) as observer,
    ):
        chance = random.Random(1)
        timing = Timing(stop_s=0.3, steady_s=0.1)
        conductor = Conductor(Server(), observer, timing, chance, print)
        drawn = attacks(("engine-core",), ("kill", "stop"), ())
        await LossesInARow(conductor, Server(), observer, chance, print).run(drawn, Plan(2, 0.2, 30.0))

    total = judge(trace.events, heard)[-1]
    assert (total.losses, total.broken, total.differing) == (2, 0, 0)
    assert total.streams >= 24
