"""The deployment without Ray: its life from start to drain, and what it tells Ray meanwhile."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from serve_app import env
from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.engine import data_plane, engine_deployment
from serve_app.engine.engine_deployment import Engine
from serve_app.engine.node_watch import NodeWatch
from serve_app.engine.step_statistics import EngineReport
from serve_app.ingress.engine_channel import EngineChannel
from serve_app.ledger.meter import UsageMeter
from serve_app.ledger.store import UsageStore
from serve_app.settings.identity import identity_number
from serve_app.settings.storage import LedgerSettings, ledger_url
from serve_app.settings.tree import ModelSettings, RequestLogSettings
from serve_app.telemetry import replica_metrics
from serve_app.telemetry.replica_metrics import EngineLimits
from serve_app.wire.data_plane import Beat
from serve_app.wire.signals import ENGINE_IDENTITY
from tests.engine.stub_core import StubCore, scheduled
from tests.stub_engine import LIMIT_S, StubEngine
from tests.telemetry.stub_metric import SERIES, StubMetric


class StubRunning:
    """A `RunningEngine` without vLLM: a client that answers what it is told to, and a report."""

    def __init__(self) -> None:
        self.core = StubCore()
        self.report = EngineReport(self.core.requests, 1000)
        self.client = StubEngine(EngineReply(200, b"{}", headers={"Retry-After": "2"}))
        self.llm = SimpleNamespace(errored=False, check_health=self._check_health)
        self.first_runs = SimpleNamespace(left={"grammar"}, under_way=lambda: False)
        self.prefix_cache_tokens = 1000
        self.model_identity = "292856a350e198018ed7b0dfa182b5ca"
        self.stopped = False

    async def _check_health(self) -> None:
        if self.llm.errored:
            raise LookupError("core")

    def limits(self) -> EngineLimits:
        return EngineLimits(1000, 8, 512)

    def loaded_adapters(self) -> tuple[list[str], float]:
        return ["pirate"], 0.25

    def shutdown(self) -> None:
        self.stopped = True


class Replica:
    """A deployment's replica as Ray would hold it, and what it published."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        SERIES.clear()
        for kind in ("Counter", "Gauge", "Histogram"):
            monkeypatch.setattr(replica_metrics, kind, StubMetric)
        self.phases: list[Any] = []
        self.documents: list[Any] = []
        self.running = StubRunning()
        self.fails: Exception | None = None
        self.spares = 0
        context = SimpleNamespace(app_name="app", deployment="Engine-tide", replica_tag="r1")
        monkeypatch.setattr(engine_deployment.serve, "get_replica_context", lambda: context)
        monkeypatch.setattr(engine_deployment.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
        node = SimpleNamespace(get_node_id=lambda: "node 0")
        monkeypatch.setattr(engine_deployment.ray, "get_runtime_context", lambda: node)
        monkeypatch.setattr(engine_deployment, "launch", self._launch)
        monkeypatch.setattr(data_plane, "_DRAIN_CHECK_S", 0.0)
        monkeypatch.setattr(engine_deployment, "publish_phase", self._publish)
        monkeypatch.setattr(engine_deployment, "forget_phase", lambda *place: self.phases.append(place))
        monkeypatch.setattr(engine_deployment, "start_spare_here", self._start_spare)
        monkeypatch.delenv(env.ZYGOTE, raising=False)
        # Ray removes `__del__` from the class once it has called it; Python would call it again.
        self._class = type("OneEngine", (Engine,), {})
        self.engine: Any = self._class.__new__(self._class)

    def _publish(self, app: str, deployment: str, replica: str, document: str) -> None:
        assert (app, deployment, replica) == ("app", "Engine-tide", "r1")
        self.documents.append(json.loads(document))
        self.phases.append(self.documents[-1]["phase"])

    def _start_spare(self) -> None:
        assert not self.running.stopped  # the process may be killed while the engine stops
        self.spares += 1

    async def _launch(
        self, model: ModelSettings, metrics: Any, startup: Any, log: Any, meter: UsageMeter | None
    ) -> StubRunning:
        if meter is not None:
            meter.serve({})
        with startup.phase("imports"):
            if self.fails is not None:
                raise self.fails
        return self.running

    async def start(
        self, ledger: LedgerSettings | None = None, model: dict[str, Any] | None = None, **request_log: Any
    ) -> None:
        settings = RequestLogSettings(**({"enabled": False} | request_log)).model_dump(mode="json")
        given = None if ledger is None else ledger.model_dump(mode="json")
        whole = ModelSettings(name="tide", **(model or {})).model_dump(mode="json")
        await self.engine.__init__(whole, settings, ledger=given)

    async def stop(self) -> None:
        await self.engine.__del__()
        self._class.__del__ = lambda self: None  # type: ignore[attr-defined]


@pytest.fixture
async def replica(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Replica]:
    replica = Replica(monkeypatch)
    await replica.start()
    yield replica
    await replica.stop()


async def test_replica_publishes_phases_and_forgets_them_after_drain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    replica = Replica(monkeypatch)
    tasks = asyncio.all_tasks()

    await replica.start(enabled=True, directory=str(tmp_path))
    await asyncio.sleep(0)
    begun = asyncio.all_tasks() - tasks
    await replica.stop()
    await asyncio.sleep(0)

    assert replica.phases == ["imports", "data_plane", "ready", "draining", ("app", "Engine-tide", "r1")]
    parts = {
        "phase",
        "since",
        "durations_s",
        "warm_node",
        "identity",
        "node",
    }
    assert all(document.keys() >= parts for document in replica.documents)
    assert replica.running.stopped
    assert len(begun) >= 3
    assert all(task.done() for task in begun)


async def test_a_replica_writes_its_whole_life_to_the_ledger(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    replica = Replica(monkeypatch)
    settings = LedgerSettings(url=f"sqlite:///{tmp_path}/usage.db", gpu_hour_prices={"A100": 3600.0})

    await replica.start(settings)
    await replica.stop()

    store = UsageStore(ledger_url(settings), "app")
    unused = store.unused(0.0, 1e12)
    store.close()
    assert set(unused) == {"starting", "idle", "draining"}
    assert all(amounts.cost == pytest.approx(amounts.gpu_seconds) for amounts in unused.values())


async def test_heartbeats_report_usage_that_the_ledger_cannot_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "file").touch()
    replica = Replica(monkeypatch)
    await replica.start(LedgerSettings(url=f"sqlite:///{tmp_path}/file/usage.db"))
    told = replica.engine.record_replica_metadata()
    beats: asyncio.Queue[Beat] = asyncio.Queue()
    channel = await EngineChannel.connect(told["address"], told["token"], LIMIT_S)
    channel.on_beat = beats.put_nowait

    async with asyncio.timeout(LIMIT_S):
        while not (await beats.get()).unwritten_s:
            pass

    channel.close()
    await replica.stop()


async def test_every_gpu_of_a_replica_is_metered(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    metered: list[int] = []

    def meter(name: str, gpus: int, *more: Any, **prices: Any) -> UsageMeter:
        metered.append(gpus)
        return UsageMeter(name, gpus, *more, **prices)

    monkeypatch.setattr("serve_app.engine.engine_deployment.UsageMeter", meter)
    replica = Replica(monkeypatch)
    await replica.start(
        LedgerSettings(url=f"sqlite:///{tmp_path}/usage.db"),
        {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
    )
    await replica.stop()

    assert metered == [8]


async def test_a_replica_that_could_not_start_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(monkeypatch)
    monkeypatch.setenv(env.ZYGOTE, "ab12")
    replica.fails = OSError("no such model")

    with pytest.raises(OSError, match="no such model"):
        await replica.start()
    await replica.stop()

    assert replica.phases == ["imports", "failed"]
    assert replica.spares == 0  # Ray starts it again and again, and each start would leave a process


@pytest.mark.parametrize(("zygote", "spares"), [("ab12", 1), (None, 0)], ids=["zygote", "none"])
async def test_drained_replica_requests_a_spare_process(
    monkeypatch: pytest.MonkeyPatch, zygote: str | None, spares: int
) -> None:
    replica = Replica(monkeypatch)
    if zygote is not None:
        monkeypatch.setenv(env.ZYGOTE, zygote)
    await replica.start()
    assert replica.spares == 0

    await replica.stop()

    assert replica.spares == spares
    assert replica.phases[-2:] == ["draining", ("app", "Engine-tide", "r1")]


async def test_silent_raylet_is_logged_and_does_not_delay_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise grpc.RpcError("the raylet is gone")

    replica = Replica(monkeypatch)
    monkeypatch.setenv(env.ZYGOTE, "ab12")
    monkeypatch.setattr(engine_deployment, "start_spare_here", fail)
    await replica.start()

    with caplog.at_level(logging.WARNING, "ray.serve"):
        await replica.stop()

    assert caplog.messages[-1:] == [
        "the spare process of the next replica: failed: RpcError: the raylet is gone"
    ]
    assert replica.running.stopped


async def test_silent_store_delays_drain_by_at_most_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Replica(monkeypatch)
    await replica.start()
    monkeypatch.setattr(engine_deployment, "_RAY_WAIT_S", 0.01)
    answers = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(
        engine_deployment,
        "publish_phase",
        lambda *_: asyncio.run_coroutine_threadsafe(answers.wait(), loop).result(LIMIT_S),
    )

    async with asyncio.timeout(LIMIT_S):
        await replica.stop()
    answers.set()

    assert replica.running.stopped


async def test_the_policy_gets_the_engines_signals_and_steps_are_counted(replica: Replica) -> None:
    replica.running.core.add("a", prompt=7)
    replica.running.report.add(scheduled(prefill=7, elapsed_ms=20.0), {})

    told = await replica.engine.record_autoscaling_stats()

    assert (told["waiting_requests"], told["waiting_tokens"], told["steps"]) == (1.0, 7.0, 1.0)
    assert told[ENGINE_IDENTITY] == identity_number("embedded on 1 x A100")
    await asyncio.sleep(0)
    assert SERIES["llm_max_num_seqs"].values[-1] == (8, {})
    assert SERIES["llm_steps_total"].values == [(1.0, {})]
    assert SERIES["llm_step_prefill_tokens_total"].values == [(7.0, {})]


async def test_ingress_can_call_until_the_core_is_dead(replica: Replica) -> None:
    await replica.engine.check_health()
    told = replica.engine.record_replica_metadata()
    assert told["identity"] == replica.running.model_identity
    beats: asyncio.Queue[Beat] = asyncio.Queue()
    channel = await EngineChannel.connect(told["address"], told["token"], LIMIT_S)
    channel.on_beat = beats.put_nowait
    answer = await channel.call(EngineRequest("completions", b"{}", "r-1"), b"{}").answer()
    assert answer.status == 200

    replica.running.llm.errored = True

    with pytest.raises(RuntimeError, match="LookupError: core"):
        await replica.engine.check_health()
    async with asyncio.timeout(LIMIT_S):
        while (await beats.get()).trouble != "its engine core has died":
            pass
    channel.close()


async def test_replica_publishes_why_ray_will_replace_it(replica: Replica) -> None:
    await replica.engine.check_health()
    assert replica.phases[-1] == "ready"
    assert replica.documents[-1]["node"] == "node 0"
    written = len(replica.documents)

    replica.running.llm.errored = True
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await replica.engine.check_health()

    assert len(replica.documents) == written + 1
    document = replica.documents[-1]
    assert (document["phase"], document["cause"]) == ("ready", "engine_died")
    assert document["trouble"] == "its engine core has died"
    replica.running.llm.errored = False
    await replica.engine.check_health()
    assert "cause" not in replica.documents[-1]


async def test_drain_keeps_why_ray_replaces_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray stops it with a drain, and may kill it meanwhile: the policy counts a loss in both cases."""
    replica = Replica(monkeypatch)
    await replica.start()
    replica.running.llm.errored = True
    with pytest.raises(RuntimeError):
        await replica.engine.check_health()

    await replica.stop()

    assert replica.phases[-1] == "draining"
    assert replica.documents[-1]["cause"] == "engine_died"


async def test_notice_during_a_health_check_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: dict[str, float] = {}
    monkeypatch.setattr(engine_deployment, "NodeWatch", partial(NodeWatch, read=lambda: ends))
    replica, checked = Replica(monkeypatch), asyncio.Event()
    await replica.start(model={"variants": [{"name": "spot", "usd_per_hour": 1, "preemptible": True}]})
    replica.running.llm.check_health = checked.wait
    checking = asyncio.create_task(replica.engine.check_health())
    ends["node 0"] = time.time() + 30.0
    async with asyncio.timeout(LIMIT_S):
        while "notice_s" not in replica.documents[-1]:
            await asyncio.sleep(0)
    checked.set()
    await checking

    await replica.stop()

    assert replica.phases[-2] == "draining"
    assert "notice_s" in replica.documents[-1]
