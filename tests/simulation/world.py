"""One world: an ingress, engines, clients and faults, all drawn from a seed."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.api.endpoints import ApiModel
from serve_app.api.engine_response import WriteNowMiddleware
from serve_app.api.http_api import create_app
from serve_app.api.quotas import Quotas
from serve_app.engine.data_plane import DataPlane
from serve_app.engine.generate_operation import TokenTexts
from serve_app.engine.local_client import LocalEngine
from serve_app.engine.operations import Serving
from serve_app.ingress.admission import Admission
from serve_app.ingress.engine_channel import EngineChannels
from serve_app.ingress.relay import RelayClient
from serve_app.ingress.replica_heartbeats import Heartbeats
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.patches.uvicorn import HttpProtocol
from serve_app.settings import ModelSettings
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import HttpSettings
from serve_app.wire.data_plane import Beat
from tests.api.server import StubObserver
from tests.engine.stub_engine_core import MODEL, configured, put_in_place
from tests.ingress.fleet import FakeProgress
from tests.simulation.checks import check_answers, check_quiet
from tests.simulation.client import Asked, Client
from tests.simulation.core import Core
from tests.simulation.loop import SimulatedLoop

_UNIX_S = 1.7e9
_QUIET_S = 30.0
"""When the last client has gone, everything must be back at its start after so long."""
_WORDS = ("the sea", "is calm", "and grey", "waves", "roll over", "old stones", "while", "gulls cry", "海 🌊")


_front_ends: list[tuple[Core, Serving]] = []
"""vLLM's front ends that no world uses now, each with its core."""


async def _prepare_front_ends(count: int) -> None:
    """Have so many front ends before a world begins, so that their start is no part of its schedule."""
    _, namespace, config = configured()
    while len(_front_ends) < count:
        core = Core()
        with pytest.MonkeyPatch.context() as patch:
            put_in_place(core, patch)
            llm = AsyncLLM.from_vllm_config(config, disable_log_stats=False)
        _front_ends.append((core, await Serving.mount(llm, namespace)))
        _end_output_handler(llm)
        await asyncio.sleep(1.0)


def _end_output_handler(llm: AsyncLLM) -> None:
    """End the task of a front end, which the next request starts again."""
    if llm.output_handler is not None:
        llm.output_handler.cancel()
        llm.output_handler = None


class Engine:
    """One engine replica: its core, vLLM's front end, our engine code and its data plane."""

    core: Core
    serving: Serving
    plane: DataPlane

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.fails = False
        """Whether it gets no further fault."""
        self._world = world

    async def start(self) -> None:
        """Start as an engine without requests."""
        world = self._world
        self.core, self.serving = _front_ends.pop()
        self.core.begin(world.step_s, world.prompts, world.faults, **world.engine)
        self.llm: Any = self.serving.engine
        world.tokenizer = self.llm.get_tokenizer()
        settings = ModelSettings.model_validate(MODEL | world.engine)
        self.plane = DataPlane(LocalEngine(self.serving, settings, lambda _: None), self._heartbeat)
        self.plane.token = self.name  # the trace has it
        await self.plane.start(self.name)

    def _heartbeat(self) -> Beat:
        return Beat("its engine core has died" if self.llm.errored else "")

    async def stop(self) -> None:
        """Stop its parts, which ends what they do."""
        await self.plane.stop()
        self.core.stop()
        _end_output_handler(self.llm)
        processor = self.llm.output_processor
        left = list(processor.request_states)
        if self.core.dead:
            processor.abort_requests(left, internal=True)  # vLLM itself keeps them
        elif left:
            self._world.faults.append(f"left: {left} in the front end of {self.name} after its stop")
            return
        _front_ends.append((self.core, self.serving))


class Ingress:
    """One ingress replica with its HTTP server, as `IngressDeployment` builds it, without Ray."""

    def __init__(self, world: World, loop: SimulatedLoop) -> None:
        model = ModelSettings.model_validate(MODEL | world.engine | world.limits)
        self.replicas = ReplicaSet(clock=loop.time)
        knobs = Knobs(**world.knobs)
        progress: Any = FakeProgress()
        handle: Any = RayHandle(self.replicas)
        self.admission = Admission(model, self.replicas, handle, lambda: knobs, progress, loop.time)
        self.channels = EngineChannels()
        self._heartbeats = Heartbeats([self.replicas], self.channels)
        relay = RelayClient(model, self.admission, self.channels)
        self.models = [ApiModel(model.name, 1, relay, model.max_model_len, knobs=lambda: knobs)]
        self.app = create_app(
            self.models, StubObserver(), HttpSettings(), quotas=Quotas(clock=loop.time), behind_ray=True
        )
        config = uvicorn.Config(WriteNowMiddleware(self.app), lifespan="off", log_config=None, ws="none")
        config.load()
        self.state = ServerState()
        self._task = loop.create_task(self._heartbeats.run())
        server = loop.network.listen(lambda: HttpProtocol(config, self.state, {}, _loop=loop), "ingress")
        self.address: tuple[str, int] = server.sockets[0].getsockname()

    def stop(self) -> None:
        self._task.cancel()


class RayHandle:
    """Ray's handle of the deployment: it finds a replica once there is one."""

    is_initialized = True

    def __init__(self, replicas: ReplicaSet) -> None:
        self._replicas = replicas

    @asynccontextmanager
    async def choose_replica(self) -> AsyncIterator[None]:
        while not self._replicas.listed():
            await asyncio.sleep(0.1)
        yield


class World:
    """What the seed draws, and what happened."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        draw = self.draw = Random(f"world {seed}")
        self.faults: list[str] = []
        """What must always hold, and did not."""
        self.prompts: dict[str, list[int]] = {}
        self.step_s = draw.choice((0.002, 0.02, 0.2))
        self.engine: dict[str, Any] = {"max_num_seqs": draw.choice((1, 2, 4, 16))}
        self.limits: dict[str, Any] = {"max_ongoing_requests": draw.choice((2, 8, 32))}
        self.knobs: dict[str, Any] = {"drain_move_after_s": draw.choice((0.0, 1.0, None))}
        self.engines = draw.randint(1, 3)
        self.clients = [self._client(number) for number in range(draw.randint(1, 12))]
        kinds = ("cut", "stall", "kill", "core", "drain")
        self.events = sorted(
            (draw.uniform(0.0, 6.0), draw.choice(kinds)) for _ in range(draw.choice((0, 1, 2, 4, 8)))
        )
        self.running: list[Engine] = []
        self.trace: list[str] = []
        """What arrived at each end of each connection, and when."""
        self.asked: list[Client] = []
        self.tokenizer: Any = None
        self._started = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def _client(self, number: int) -> Asked:
        draw = self.draw
        text = " ".join(draw.choices(_WORDS, k=draw.randint(1, 20)))
        chats = draw.random() < 0.7
        body: dict[str, Any] = {
            "model": "tide",
            **({"messages": [{"role": "user", "content": text}]} if chats else {"prompt": text}),
            "n": draw.choice((1, 1, 1, 2, 3)),
            "max_tokens": draw.choice((1, 2, 5, 20, 60, 150)),
            "ignore_eos": True,
        }
        if draw.random() < 0.75:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        asked = Asked(f"c{number}", draw.choice((0.0, draw.uniform(0.0, 6.0))), body)
        if draw.random() < 0.25:
            asked.leaves = draw.choice(("abort", "close", "half-close"))
            asked.leaves_after_s = draw.choice((0.0, 0.01, 0.1, 1.0, 5.0)) * draw.random()
        if draw.random() < 0.2:
            asked.pauses_s = draw.choice((0.01, 0.5))
        return asked

    def __str__(self) -> str:
        return (
            f"{self.engines} engines {self.engine | self.limits | self.knobs} step {self.step_s} s, "
            f"{len(self.clients)} clients, {[(round(at, 3), kind) for at, kind in self.events]}"
        )

    async def run(self, loop: SimulatedLoop) -> None:
        """Let everything happen, and check what is left."""
        self.loop = loop
        self.ingress = Ingress(self, loop)
        for _ in range(self.engines):
            await self._start_engine(0.0)
        self.push()
        clients = [Client(asked, self.seed) for asked in self.clients]
        watching = loop.create_task(self._watch())
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run(*self.ingress.address))
            group.create_task(self._cause_faults())
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(_QUIET_S)
        watching.cancel()
        self.asked = clients
        check_answers(self, clients)
        check_quiet(self)
        self.ingress.stop()
        for engine in self.running:
            await engine.stop()
        await asyncio.sleep(_QUIET_S)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        self.faults += [f"a task is left: {task.get_coro()}" for task in left]
        self.faults += [f"a connection is left: {end.name}" for end in loop.network.open]
        self.faults += loop.errors

    def text_of(self, prompt: list[int], tokens: list[int]) -> str:
        """Return the text of an answer, token by token."""
        return "".join(TokenTexts(self.tokenizer, SamplingParams(), prompt, "whole").split(tokens))

    def push(self) -> None:
        """Have Ray tell the ingress which replicas run."""
        listed = {
            engine.name: {"address": engine.plane.address, "token": engine.plane.token}
            for engine in self.running
        }
        self.ingress.replicas.update(listed)

    async def _start_engine(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._started += 1
        engine = Engine(self, f"engine-{self._started}")
        await engine.start()
        self.running.append(engine)

    async def _replace(self, engine: Engine, noticed_s: float) -> None:
        """Ray notices that a replica is gone, and starts another."""
        await asyncio.sleep(noticed_s)
        self.running.remove(engine)
        self.push()
        await self._start_engine(self.draw.choice((0.0, 1.0, 8.0)))
        self.push()
        await asyncio.sleep(self.draw.random())
        self.push()  # Ray may tell it twice

    async def _cause_faults(self) -> None:
        began = self.loop.time()
        for at_s, kind in self.events:
            await asyncio.sleep(max(0.0, began + at_s - self.loop.time()))
            engine = self.draw.choice(self.running) if self.running else None
            if engine is None or engine.fails:
                continue
            engine.fails = kind not in ("cut", "stall")
            self.loop.network.note(f"{kind} {engine.name}")
            ends = self.loop.network.of(engine.name)
            if kind in ("cut", "stall"):
                for end in ends:
                    end.cut() if kind == "cut" else end.stall(self.draw.choice((0.3, 1.5, 4.0)))
            else:
                self._begin(getattr(self, f"_{kind}")(engine))

    def _begin(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _kill(self, engine: Engine) -> None:
        for end in self.loop.network.of(engine.name):
            end.cut()
        await engine.stop()
        await self._replace(engine, self.draw.uniform(0.0, 4.0))

    async def _core(self, engine: Engine) -> None:
        engine.core.die()
        await self._replace(engine, self.draw.uniform(2.0, 5.0))
        await engine.stop()

    async def _drain(self, engine: Engine) -> None:
        await self._replace(engine, 0.0)
        await engine.plane.drain()
        await engine.stop()

    async def _watch(self) -> None:
        """Find a request that waits beside a free replica."""
        replicas, queue, idle = self.ingress.replicas, self.ingress.admission.queue, 0
        limit = min(self.limits["max_ongoing_requests"], self.engine["max_num_seqs"])
        while True:
            free = any(not one.trouble and one.in_flight < limit for one in replicas.listed())
            idle = idle + 1 if free and queue.foreground else 0
            if idle == 20:
                self.faults.append("a request waits beside a free replica for 1 s")
            await asyncio.sleep(0.05)


def run_world(seed: str) -> World:
    """Run the world of a seed to its end. Its `faults` say what did not hold."""
    loop = SimulatedLoop(seed)
    world = World(seed)
    before = SimulatedLoop("front ends")
    before.run_until_complete(_prepare_front_ends(world.engines + len(world.events)))
    before.close()
    with pytest.MonkeyPatch.context() as patch:
        for clock in ("perf_counter", "monotonic"):
            patch.setattr(time, clock, loop.time)
        patch.setattr(time, "time", lambda: _UNIX_S + loop.time())
        patch.setattr(time, "time_ns", lambda: int(1e9 * (_UNIX_S + loop.time())))
        try:
            loop.run_until_complete(world.run(loop))
        except Exception as error:
            world.faults.append("".join(traceback.format_exception(error)))
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(1.0))
        finally:
            loop.close()
    world.trace = loop.network.trace
    return world
