"""The parts of a world: an ingress replica, and engine replicas around simulated cores."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from uvicorn.server import ServerState
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.api.endpoints import ApiModel
from serve_app.api.engine_response import WriteNowMiddleware
from serve_app.api.http_api import create_app
from serve_app.api.quotas import Quotas
from serve_app.engine.data_plane import DataPlane
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
from tests.ingress.fleet import FakeHandle, FakeProgress
from tests.simulation.core import Core

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.world import World

_front_ends: list[tuple[Core, Serving]] = []
"""vLLM's front ends that no world uses now, each with its core."""


async def prepare_front_ends(count: int) -> None:
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
        handle: Any = FakeHandle(holds=True)
        self.admission = Admission(model, self.replicas, handle, lambda: knobs, progress, loop.time)
        channels = EngineChannels()
        relay = RelayClient(model, self.admission, channels)
        served = [ApiModel(model.name, 1, relay, model.max_model_len, knobs=lambda: knobs)]
        quotas = Quotas(clock=loop.time)
        self.app = create_app(served, StubObserver(), HttpSettings(), quotas=quotas, behind_ray=True)
        config = uvicorn.Config(WriteNowMiddleware(self.app), lifespan="off", log_config=None, ws="none")
        config.load()
        self.state = ServerState()
        self._task = loop.create_task(Heartbeats([self.replicas], channels).run())
        server = loop.network.listen(lambda: HttpProtocol(config, self.state, {}, _loop=loop), "ingress")
        self.address: tuple[str, int] = server.sockets[0].getsockname()

    def stop(self) -> None:
        """Stop listening to heartbeats, which ends all channels."""
        self._task.cancel()
