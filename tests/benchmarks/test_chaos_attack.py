"""Attacks on processes that only have the titles of an application's, and a server that answers as one.

The processes, the signals, the load's own process and HTTP are real. The server is a stub.
`tests/integration/test_chaos.py` attacks a real application.
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
from benchmarks.chaos.load import Job
from benchmarks.chaos.losses import LossesInARow, still_serving, victims
from benchmarks.chaos.observer import Observer, observing, read_ready
from benchmarks.chaos.processes import Processes, resume, send_signal
from benchmarks.chaos.trace import Probe, Process, Snapshot, Trace

TITLED = "import os, sys; os.execv('/bin/sleep', [sys.argv[1], '600'])"
APPLICATION = """
import subprocess, sys, time
TITLED = sys.argv[1]
def start(*words, **more):
    return subprocess.Popen([sys.executable, "-IS", "-c", *words], **more)
ENGINE = '''
import subprocess, sys, os
subprocess.Popen([sys.executable, "-IS", "-c", sys.argv[1], "VLLM::EngineCore"])
os.execv("/bin/sleep", ["ray::ServeReplica:tideserve:Engine-stub", "600"])
'''
for _ in range(3):
    start(ENGINE, TITLED, process_group=0)
start(TITLED, "ray::ServeController")
while True:  # The supervisor restarts it.
    start(TITLED, "ray::DashboardAgent").wait()
    time.sleep(0.3)
"""


class Stub:
    """Answers as an application with three engines."""

    url = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
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

    async def answer(self, _: web.Request) -> web.Response:
        return web.json_response({"models": {"stub": {"state": "up", "replicas": 3}}})


class Server:
    """Neither ends nor is started."""

    engines = 3

    def ended(self) -> str | None:
        return None

    async def start(self) -> None:
        raise AssertionError("it never ended")

    async def stop(self) -> None: ...


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    leader = subprocess.Popen([sys.executable, "-IS", "-c", APPLICATION, TITLED])
    tree = psutil.Process(leader.pid)
    try:
        yield Processes(leader.pid)
    finally:
        for one in [tree, *tree.children(recursive=True)]:
            one.kill()
        leader.wait()


@asynccontextmanager
async def stub() -> AsyncIterator[Stub]:
    served, app = Stub(), web.Application()
    app.router.add_post("/v1/chat/completions", served.chat)
    for method, path in (("POST", "/v1/completions"), ("GET", "/ready"), ("GET", "/health")):
        app.router.add_route(method, path, served.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()


@asynccontextmanager
async def conducted(processes: Processes) -> AsyncIterator[tuple[Conductor, Observer]]:
    timing = Timing(load_s=0.3, watch_s=0.5, recovery_s=60.0, stop_s=0.5, steady_s=0.3, baseline_s=0.2)
    async with stub() as served, observing(processes, Job(served.url, "stub", 4, 20), Trace()) as observer:
        yield Conductor(Server(), observer, timing, random.Random(1)), observer


async def test_at_random_every_event_lasts_until_the_next(processes: Processes) -> None:
    async with conducted(processes) as (conductor, observer):
        attacks = [Attack("dashboard-agent", "kill"), Attack("controller", "stop")]
        await conductor.attack_at_random(attacks, minutes=0.03, pause_s=(0.1, 0.3))
    events = observer.trace.events

    assert len(events) >= 2
    assert [event.end_s for event in events[:-1]] == [event.at_s for event in events[1:]]
    assert all(stream.whole for stream in observer.trace.streams)
    assert "controller" in processes.snapshot().running()


async def test_losses_in_a_row_compare_every_stream(processes: Processes) -> None:
    async with conducted(processes) as (conductor, observer):
        losses = LossesInARow(conductor, Server(), observer, random.Random(1))
        await losses.run([Attack("engine-core", "stop")], losses=2, every_s=0.2, most_s=60.0)

    total = judge(observer.trace)[-1]
    assert (total.losses, total.broken, total.differing) == (2, 0, 0)
    assert total.streams >= 24


async def test_an_engine_is_its_replica_and_core_while_both_run(processes: Processes) -> None:
    pairs = processes.snapshot().engines()
    assert len(pairs) == 3
    assert {pid for pair in pairs for pid in pair} < set(processes.pids())
    for send, wanted in ((lambda pid: send_signal(pid, "stop"), pairs[1:]), (resume, pairs)):
        send(pairs[0][1])
        async with asyncio.timeout(30):
            while processes.snapshot().engines() != wanted:
                await asyncio.sleep(0.01)


def test_an_engine_is_attacked_only_while_another_serves() -> None:
    roles = ("engine-replica", "engine-core")
    found = [Process(2 * n + at, n, role, float(n)) for n in range(3) for at, role in enumerate(roles)]
    snapshot = Snapshot(9.0, tuple(found))
    assert victims(snapshot, Attack("engine-replica", "kill"), 3) == [0, 2, 4]
    assert victims(snapshot, Attack("engine-core", "stop"), 2) == [1, 3]  # the youngest still loads
    assert victims(snapshot, Attack("engine-core", "stop"), 1) == []


def test_a_recently_lost_engine_does_not_count_as_serving() -> None:
    assert still_serving(3, []) == 3
    assert still_serving(3, [3]) == 2  # stopped: nobody knows of it yet
    assert still_serving(2, [3]) == 2  # killed, which shows at once
    assert [still_serving(ready, [3, 2]) for ready in (3, 2, 1)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("ok", "text", "found"),
    [
        (True, '{"ready": true, "models": {"stub": {"state": "up", "replicas": 2}}}', (True, True, 2)),
        (False, '{"ready": false, "models": {"stub": {"state": "down", "replicas": 0}}}', (True, False, 0)),
        (False, '{"ready": false, "models": {"stub": {"state": "up", "replicas": 1}}}', (True, False, 1)),
        (False, "<html>no server is available</html>", (False, False, 0)),
        (True, '{"models": {"other": {}}}', (False, False, 0)),
        (False, "", (False, False, 0)),
    ],
)  # fmt: skip
def test_ready_is_up_down_or_without_an_answer(ok: bool, text: str, found: tuple[bool, bool, int]) -> None:
    ready = read_ready(Probe(1.0, 1.1, ok), text, "stub")
    assert (ready.ok, ready.up, ready.replicas) == found
