"""Attacks on processes that only have the titles of an application's, and a server that answers as one.

The processes, the signals, the load's own process and HTTP are real; what serves is a stub, since an
application takes a minute to start.
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
from benchmarks.chaos.engines import pairs
from benchmarks.chaos.load import Job
from benchmarks.chaos.observed import Event, Trace
from benchmarks.chaos.observer import observing, ready_answer
from benchmarks.chaos.processes import Processes, go_on, send, strength
from benchmarks.chaos.servers import ChaosError, Given
from benchmarks.chaos.verdicts import rows

MODEL = "stub"
TOKENS = 20
TITLED = "import os, sys; os.execv('/bin/sleep', [sys.argv[1], '600'])"
APPLICATION = """
import subprocess, sys, time
TITLED = sys.argv[1]
def start(title):
    return subprocess.Popen([sys.executable, "-IS", "-c", TITLED, title])
start("ray::ServeController")
ENGINE = '''
import subprocess, sys, os
subprocess.Popen([sys.executable, "-IS", "-c", sys.argv[1], "VLLM::EngineCore"])
os.execv("/bin/sleep", ["ray::ServeReplica:tideserve:Engine-stub", "600"])
'''
subprocess.Popen([sys.executable, "-IS", "-c", ENGINE, TITLED])
while True:  # What supervises restarts it.
    start("ray::DashboardAgent").wait()
    time.sleep(0.3)
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    leader = subprocess.Popen([sys.executable, "-IS", "-c", APPLICATION, TITLED])
    tree = psutil.Process(leader.pid)
    try:
        yield Processes([leader.pid], {leader.pid: "head"})
    finally:
        for one in [tree, *tree.children(recursive=True)]:
            one.kill()
        leader.wait()


async def full(processes: Processes) -> dict[str, int]:
    async with asyncio.timeout(30):
        while len(found := strength(processes.look())) < 4:
            await asyncio.sleep(0.05)
    return found


async def seen(processes: Processes, wanted: set[tuple[int, int]]) -> None:
    """Wait for these pairs: a signal takes a moment to arrive."""
    async with asyncio.timeout(30):
        while pairs(processes.look()) != wanted:
            await asyncio.sleep(0.01)


class Stub:
    """Answers as an application with one engine does. `cut` has streams end without `[DONE]`."""

    def __init__(self) -> None:
        self.cut = False
        self.url = ""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("stream"):
            return web.json_response({"choices": []})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
            await asyncio.sleep(0.01)
        if not self.cut:
            usage = {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}
            await response.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
        return response

    async def ready(self, _: web.Request) -> web.Response:
        return web.json_response({"ready": True, "models": {MODEL: {"state": "up", "replicas": 1}}})

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    served = Stub()
    app = web.Application()
    app.router.add_post("/v1/completions", served.completions)
    app.router.add_get("/ready", served.ready)
    app.router.add_get("/health", served.health)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()


class Server:
    """Neither ends nor is started."""

    engines = 1

    def ended(self) -> str | None:
        return None

    async def start(self) -> None:
        raise AssertionError("it never ended")

    async def stop(self) -> None: ...

    async def restore(self, event: Event) -> None: ...


@asynccontextmanager
async def conducted(stub: Stub, processes: Processes) -> AsyncIterator[tuple[Conductor, Trace]]:
    await full(processes)
    trace = Trace()
    timing = Timing(load_s=0.3, watch_s=0.5, recovery_s=20.0, stop_s=0.5, steady_s=0.3, baseline_s=0.2)
    async with observing(processes, Job(stub.url, {}, MODEL, 4, TOKENS), trace) as observer:
        yield Conductor(Server(), observer, timing, random.Random(1), print), trace


async def test_one_event_after_the_other_on_an_application_that_has_recovered(
    stub: Stub, processes: Processes
) -> None:
    async with conducted(stub, processes) as (conductor, trace):
        await conductor.sequence([Attack("dashboard-agent", "kill"), Attack("gcs", "kill")])
        stub.cut = True
        await conductor.sequence([Attack("controller", "stop")])
    killed, stopped = rows(trace)  # no process of role gcs: skipped

    assert killed.back_s is not None
    assert killed.streams["whole"] >= 4
    assert set(killed.streams) == {"whole"}
    assert (killed.failed, killed.health_failed, killed.engines_restarted) == (0, 0, 0)
    assert killed.goals["cut"]

    assert stopped.back_s is not None
    assert stopped.back_s >= 0.4
    assert strength(processes.look())["controller"] == 1
    assert stopped.streams["cut"] >= 4
    assert "cut" in stopped.missed


async def test_at_random_every_event_lasts_until_the_next(stub: Stub, processes: Processes) -> None:
    async with conducted(stub, processes) as (conductor, trace):
        attacks = [Attack("dashboard-agent", "kill"), Attack("controller", "stop")]
        await conductor.at_random(attacks, minutes=0.03, pause_s=(0.1, 0.3))
    found = rows(trace)

    assert len(found) >= 2
    assert trace.ends_s[:-1] == [event.at_s for event in trace.events[1:]]
    assert sum(row.streams.get("whole", 0) for row in found) >= 4
    assert strength(processes.look())["controller"] == 1


async def test_a_server_that_runs_already_is_attacked_and_never_started(
    stub: Stub, processes: Processes
) -> None:
    await full(processes)
    given = await asyncio.to_thread(Given, stub.url, None, processes)
    await given.start()
    assert (given.model, given.engines, given.ended()) == (MODEL, 1, None)
    with pytest.raises(ChaosError, match="is not started anew"):
        await given.start()
    with pytest.raises(ChaosError, match=r"--model = 'other': not served; there are stub"):
        await asyncio.to_thread(Given, stub.url, "other", processes)
    with pytest.raises(ChaosError, match="no engine descends from these processes"):
        await (await asyncio.to_thread(Given, stub.url, None, Processes([]))).start()
    with pytest.raises(ChaosError, match="no /ready of Tideserve answers there"):
        await asyncio.to_thread(Given, "http://127.0.0.1:1", None, processes)


async def test_processes_are_found_by_title_and_keep_their_node_when_orphaned(processes: Processes) -> None:
    assert await full(processes) == {
        "controller": 1, "engine-replica": 1, "engine-core": 1, "dashboard-agent": 1,
    }  # fmt: skip
    look = processes.look()
    assert {one.node for one in look.processes} == {"head"}
    ((replica, core),) = pairs(look)
    assert {replica, core} < set(processes.everything("head"))
    send([core], "stop")
    await seen(processes, set())
    go_on([core])
    await seen(processes, {(replica, core)})
    assert processes.memory(look).count_by_role["engine-core"] == 1


@pytest.mark.parametrize(
    ("status", "text", "said", "replicas"),
    [
        (200, '{"ready": true, "models": {"stub": {"state": "up", "replicas": 2}}}', "up", 2),
        (503, '{"ready": false, "models": {"stub": {"state": "loading", "replicas": 0}}}', "down", 0),
        (503, '{"ready": false, "models": {"stub": {"state": "up", "replicas": 1}}}', "down", 1),
        (503, "<html>no server is available</html>", "nothing", 0),
        (200, '{"models": {"other": {}}}', "nothing", 0),
        (200, "[]", "nothing", 0),
    ],
)
def test_ready_says_up_down_or_nothing(status: int, text: str, said: str, replicas: int) -> None:
    found = ready_answer(1.0, 1.1, status, text, MODEL)
    assert (found.said, found.replicas) == (said, replicas)


def test_no_answer_says_nothing_and_why() -> None:
    found = ready_answer(1.0, 1.1, 0, "", MODEL, "refused")
    assert (found.said, found.error) == ("nothing", "refused")
