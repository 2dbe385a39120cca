"""The parts of a world: ingress replicas, and engine replicas around simulated cores."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from uvicorn.server import ServerState
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.dialect import dialect_of
from serve_app.api.endpoints import ApiModel
from serve_app.api.engine_client import EngineReply
from serve_app.api.engine_response import WriteNowMiddleware
from serve_app.api.http_api import create_app
from serve_app.api.quotas import Quotas
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.serve_status import ServeStatus
from serve_app.engine.adapters import Adapters
from serve_app.engine.chat_operations import Serving
from serve_app.engine.data_plane import DataPlane
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.local_client import LocalEngine
from serve_app.ingress.admission import Admission
from serve_app.ingress.cold_start_progress import ProgressReader, StoredState
from serve_app.ingress.engine_channel import EngineChannels
from serve_app.ingress.quota_exchange import QuotaReports, share_quotas
from serve_app.ingress.relay import RelayClient
from serve_app.ingress.replica_heartbeats import Heartbeats
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.ledger.meter import UsageMeter
from serve_app.patches.uvicorn import HttpProtocol
from serve_app.settings.model_names import Adapter
from serve_app.settings.tree import HttpSettings, ModelSettings
from serve_app.weights import embedded_adapter_path
from serve_app.weights.adapter_store import AdapterError, AdapterStore, StoredAdapter
from serve_app.wire.data_plane import Beat
from tests.api.server import StubObserver
from tests.engine.stub_engine_core import MODEL, configured, put_in_place, use_parser
from tests.ingress.fakes import FakeHandle
from tests.simulation.checks import AMOUNTS
from tests.simulation.core import Core

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.request_world import RequestWorld

LORA = {"max_rank": 8, "max_loaded": 1, "max_cached": 2}
SIMULATED = {**MODEL, "max_model_len": 1024, "lora": LORA}
_MOST_LOADS = 2
"""Of an adapter while one call waits: another call may take it first, and the adapter then leaves."""
_front_ends: list[tuple[Core, Serving]] = []
"""vLLM's front ends that no world uses now, each with its core."""


async def prepare_front_ends(count: int) -> None:
    """Have so many front ends before a world begins, so that their start is no part of its schedule."""
    if len(_front_ends) >= count:
        return
    _, namespace, config = configured(**SIMULATED, tool_call_parser="hermes")
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


class FakeAdapterStore(AdapterStore):
    """Has the files of every adapter, or cannot read them. The real one copies them in threads of its own."""

    def __init__(self, fails: Callable[[], bool]) -> None:
        self._fails = fails

    def fetch(self, source: str) -> StoredAdapter:
        if self._fails():
            raise AdapterError(503, "its source cannot be read now")
        stored: Any = SimpleNamespace(path=embedded_adapter_path(), close=lambda: None)
        return stored


class CountedAdapters(Adapters):
    """Counts the calls that use an adapter, and the loads of an adapter that one call has waited for."""

    loads: Counter[str]
    used = most_loads = 0

    async def take(self, adapter: Adapter) -> None:
        before = self.loads[adapter.name]
        try:
            await super().take(adapter)
        finally:
            self.most_loads = max(self.most_loads, self.loads[adapter.name] - before)
        self.used += 1

    def release(self, adapter: Adapter) -> None:
        super().release(adapter)
        self.used -= 1


class PausingEngine(LocalEngine):
    """Its streams may pause behind their last event, so that an engine may be lost there."""

    world: RequestWorld

    @asynccontextmanager
    async def call(self, call: EngineCall) -> AsyncIterator[EngineReply]:
        async def pausing(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
            async for data in stream:
                yield data
                if dialect_of(call.message.operation).ends(data):
                    await asyncio.sleep(self.world.pause_s * self.world.draw.random())

        async with super().call(call) as reply:
            yield replace(reply, stream=reply.stream and pausing(reply.stream))


class Engine:
    """One engine replica: its core, vLLM's front end, our engine code and its data plane."""

    def __init__(self, world: RequestWorld, name: str) -> None:
        self.name = name
        self.identity = world.identities[-1]
        self.fails = False
        """Whether it gets no further fault."""
        self._world = world

    async def start(self) -> None:
        """Start as an engine without requests."""
        world = self._world
        self.core, self.serving = _front_ends.pop()
        self.llm: Any = self.serving.engine
        world.oracle.tokenizer = self.llm.get_tokenizer()
        self.core.begin(
            world.oracle, self.identity, world.step_s, world.burst, **{"lora": LORA} | world.engine
        )
        settings = ModelSettings.model_validate(SIMULATED | world.engine)
        assert settings.lora is not None
        use_parser(self.serving, tool_parser_name=world.parser)
        self.serving.adapters.clear()
        store, draw = FakeAdapterStore(lambda: draw.random() < world.unread_adapters), Random(self.name)
        clock = world.loop.time
        loads = Counter[str]()

        def count(name: str, _: float) -> None:
            loads[name] += 1
            assert loads[name] < 500, "an adapter is loaded again and again"

        registry = self.serving.adapters
        self.adapters = CountedAdapters(self.llm, registry, settings.lora, store, count, clock)
        self.adapters.loads = loads
        client = PausingEngine(
            self.serving, settings, lambda _: None, model_identity=self.identity, adapters=self.adapters
        )
        client.world = world
        self.meter = client.meter = UsageMeter(settings.name, 1, 3.6, clock=clock)
        self.meter.serve(self.llm.output_processor.request_states)
        self.plane = DataPlane(client, self._heartbeat)
        self.plane.token = self.name  # the trace has it
        await self.plane.start(self.name)

    def _heartbeat(self) -> Beat:
        trouble = "its engine core has died" if self.llm.errored else ""
        return Beat(trouble, adapters=self.adapters.names(), adapter_load_s=self.adapters.load_s)

    def metadata(self, ingress: str) -> dict[str, str]:
        """Return what Ray tells an ingress replica. The address has the asker, for the network's faults."""
        host, _, port = self.plane.address.rpartition(":")
        return {"address": f"{host}@{ingress}:{port}", "token": self.plane.token, "identity": self.identity}

    async def stop(self) -> None:
        """Stop its parts, which ends what they do."""
        await self.plane.stop()
        await asyncio.sleep(0.1)
        self.core.stop()
        _end_output_handler(self.llm)
        processor, faults = self.llm.output_processor, self._world.faults
        for account, amounts in self.meter.take().items():  # as a writer adds it to the ledger
            self._world.usage.update({(account.key, name): getattr(amounts, name) for name in AMOUNTS})
        left = list(processor.request_states)
        if self.plane.open_requests or self.adapters.used:
            calls = f"{self.plane.open_requests} calls, {self.adapters.used} uses of adapters"
            faults.append(f"left: {calls} on {self.name} after its stop")
        if (loads := self.adapters.most_loads) > _MOST_LOADS:
            faults.append(f"a call on {self.name} has waited for {loads} loads of its adapter")
        if self.core.dead:
            processor.abort_requests(left, internal=True)  # vLLM itself keeps them
        elif left:
            faults.append(f"left: {left} in the front end of {self.name} after its stop")
            return
        _front_ends.append((self.core, self.serving))


class RayHandle(FakeHandle):
    """Ray's queue: it answers once a replica runs, or fails, or hangs, or cancels the request."""

    def __init__(self, world: RequestWorld, draw: Random) -> None:
        super().__init__()
        self._world, self._draw = world, draw
        self.last_asked = 0.0

    @asynccontextmanager
    async def choose_replica(self) -> AsyncIterator[None]:
        failures = OSError("Ray's router has failed"), asyncio.CancelledError(), self._world.ray_gives_up
        outcome = self._draw.choice((None, None, "hangs", *failures))
        self.asking += 1
        try:
            await asyncio.sleep(self._draw.random())
            if isinstance(outcome, BaseException):
                raise outcome
            while outcome == "hangs" or not self._world.running:
                await asyncio.sleep(0.1)
        finally:
            self.asking -= 1
            self.last_asked = self._world.loop.time()
        yield


class Ingress:
    """One ingress replica with its HTTP server, as `IngressDeployment` builds it, without Ray."""

    def __init__(self, world: RequestWorld, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        model = ModelSettings.model_validate(SIMULATED | world.engine | world.limits)

        def state() -> StoredState:
            counts = {"ready": len(world.running), "starting": world.starting, "pending": 0, "pending_s": 0.0}
            about = counts | {"reason": "", "phases_s": {}, "cold_start_s": 2.0}
            return StoredState({"at": loop.time(), "models": {model.deployment_name: about}})

        self.replicas = ReplicaSet(clock=loop.time)
        self.knobs = world.knobs[-1]
        draw = Random(f"{world.seed} {name}")
        self.handle = RayHandle(world, draw)
        stored = BoundedCall("state", state, 0.5, loop.time)
        serve = BoundedCall("status", ServeStatus, 0.5, loop.time)
        handle: Any = self.handle
        progress = ProgressReader(stored, serve, model.deployment_name, clock=loop.time)
        self.admission = Admission(model, self.replicas, handle, lambda: self.knobs, progress, loop.time)
        channels = EngineChannels()
        relay = RelayClient(model, self.admission, channels)
        served = [ApiModel(model.name, 1, relay, model.max_model_len, knobs=lambda: self.knobs)]
        keys = ApiKeyFile(str(world.folder / "keys.json"), loop.time) if world.keys else None
        self.quotas = Quotas(clock=(lambda: 0.0) if world.buckets_stay else loop.time)
        self.reports = QuotaReports("app", name, loop.time, time.time)
        self._tasks = [loop.create_task(Heartbeats([self.replicas], channels).run())]
        if keys is not None:
            exchange = share_quotas(self.reports, self.quotas, lambda: keys.has_limits)
            self._tasks.append(loop.create_task(exchange))
        self.app = create_app(
            served, StubObserver(), HttpSettings(), api_keys=keys, quotas=self.quotas, behind_ray=True
        )
        config = uvicorn.Config(WriteNowMiddleware(self.app), lifespan="off", log_config=None, ws="none")
        config.load()
        self.state = ServerState()
        server = loop.network.listen(lambda: HttpProtocol(config, self.state, {}, _loop=loop), name)
        self.address: tuple[str, int] = server.sockets[0].getsockname()

    def stop(self) -> None:
        """Stop listening to heartbeats, which ends all channels."""
        for task in self._tasks:
            task.cancel()
