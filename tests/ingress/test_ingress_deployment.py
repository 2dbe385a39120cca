"""The ingress deployment as Ray builds it, without Ray: its handles, metrics and store are stubs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from httpx import ASGITransport, AsyncClient, Response
from ray.serve._private.common import DeploymentID, ReplicaID, ReplicaMetricReport
from ray.serve.config import HTTPOptions

from serve_app.api.api_keys import appeared
from serve_app.api.engine_client import EngineReply
from serve_app.cluster.serve_status import ServeStatus
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress import ingress_deployment
from serve_app.ingress.admission import release_limit
from serve_app.ingress.ingress_deployment import Ingress
from serve_app.ingress.replica_set import replica_set
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import AppSettings
from serve_app.telemetry import replica_metrics
from serve_app.wire.batches import BatchLine
from serve_app.wire.data_plane import Beat
from serve_app.wire.documents import KNOBS
from serve_app.wire.ingress_reports import read_reports
from serve_app.wire.served_models import read_served
from serve_app.wire.signals import INGRESS_FIELDS
from tests.ingress.fakes import FakeHandle
from tests.stub_engine import LIMIT_S, MuteEngine, StubEngine, frames
from tests.stub_kv import StubKv, stored
from tests.telemetry.stub_metric import StubMetric

FIRST, DONE = b'data: {"n":1}\n\n', b"data: [DONE]\n\n"
STREAM = {"model": "tide", "stream": True}


REPLICA = ReplicaID("i1", DeploymentID("Ingress", "shop"))
MODELS = {"tide": "Engine-tide", "org/embed": "Engine-org-embed"}


class FakeController:
    """Ray Serve's controller: it keeps the reports that it gets, or `fails`."""

    def __init__(self) -> None:
        self.reports: list[ReplicaMetricReport] = []
        self.came = asyncio.Event()
        self.fails: Exception | None = None
        self.get_http_config = SimpleNamespace(remote=self._http_config)
        self.record_autoscaling_metrics_from_replica = SimpleNamespace(remote=self._record)

    async def _http_config(self) -> HTTPOptions:
        return HTTPOptions(host="127.0.0.1")

    def _record(self, report: ReplicaMetricReport) -> None:
        if self.fails is not None:
            raise self.fails
        self.reports.append(report)
        self.came.set()

    def values(self, name: str) -> list[Any]:
        """Return the values of a signal in the reports, in order."""
        return [report.metrics[name][0].value for report in self.reports]


class Deployed:
    """An ingress replica of an application with two models, a client of it, and engine replicas to start."""

    def __init__(self, stack: AsyncExitStack, controller: FakeController) -> None:
        self._stack = stack
        self.controller = controller
        self.handles = {name: FakeHandle(holds=True) for name in MODELS}
        self._named: dict[str, dict[str, dict[str, str]]] = {name: {} for name in MODELS.values()}

    async def build(self, **settings: Any) -> Deployed:
        """Do what Ray does: construct, configure, and serve what is built."""
        models = [{"name": name} for name in self.handles]
        self.settings = AppSettings.model_validate({"models": models, **settings})
        # Ray's decorator wraps the class in one that runs its own HTTP server.
        self.ingress = object.__new__(Ingress.__mro__[1])
        before = asyncio.all_tasks()
        knobs = {name: Knobs().model_dump(mode="json") for name in self.handles}
        await self.ingress.__init__(self.settings.model_dump(mode="json"), knobs, *self.handles.values())
        for task in asyncio.all_tasks() - before:
            self._stack.callback(task.cancel)
        await self.ingress.reconfigure({})
        app = self.ingress.__serve_build_asgi_app__()
        self.http = AsyncClient(transport=ASGITransport(app), base_url="http://localhost")
        await self._stack.enter_async_context(self.http)
        return self

    async def start(
        self, engine: StubEngine, deployment: str = "Engine-tide", unwritten_s: float = 0.0
    ) -> None:
        """A replica around `engine` comes up, and Ray tells the ingress of it."""
        plane = DataPlane(engine, lambda: Beat("", unwritten_s=unwritten_s))
        await plane.start("127.0.0.1")
        self._stack.push_async_callback(plane.stop)
        named = self._named[deployment]
        named[f"r{len(named)}"] = {"address": plane.address, "token": plane.token, "identity": ""}
        replica_set(deployment).update(named)

    async def ask(self, path: str = "/v1/chat/completions", **body: Any) -> Response:
        async with asyncio.timeout(LIMIT_S):
            return await self.http.post(path, json=body)

    async def stats(self, *names: str) -> list[float]:
        """Signals about the model tide, as Ray collects them."""
        report = await self.ingress.record_autoscaling_stats()
        return [report[f"Engine-tide:{name}" if name in INGRESS_FIELDS else name] for name in names]


@pytest.fixture
async def deployed(monkeypatch: pytest.MonkeyPatch, kv: StubKv) -> AsyncIterator[Deployed]:
    context = SimpleNamespace(app_name="shop", replica_tag="i1", replica_id=REPLICA)
    controller = FakeController()
    monkeypatch.setattr(ingress_deployment.serve, "get_replica_context", lambda: context)
    monkeypatch.setattr(ingress_deployment.ray, "get_actor", lambda name, namespace: controller)
    monkeypatch.setattr(ingress_deployment, "serve_status", lambda app, names: ServeStatus())
    for kind in ("Histogram", "Counter", "Gauge"):
        monkeypatch.setattr(replica_metrics, kind, lambda name, *given, **more: StubMetric.unregistered(name))
    async with AsyncExitStack() as stack:
        yield Deployed(stack, controller)
    for deployment in MODELS.values():
        replica_set(deployment).update({})


async def test_a_stream_comes_from_the_replicas_port_byte_for_byte(deployed: Deployed) -> None:
    await deployed.build()
    engine = StubEngine(frames(FIRST, DONE))
    await deployed.start(engine)

    reply = await deployed.ask(**STREAM)

    assert (reply.status_code, reply.content) == (200, FIRST + DONE)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "x-request-id" not in reply.headers  # Ray sets it
    (request,) = engine.requests
    assert (request.message.operation, request.message.body) == (
        "chat_completions",
        b'{"model":"tide","stream":true}',
    )
    assert (request.waited_s > 0.0, request.message.queued_s) == (True, 0.0)


async def test_each_model_has_replicas_of_its_own(deployed: Deployed) -> None:
    await deployed.build()
    await deployed.start(StubEngine(EngineReply(200, b'{"from":"tide"}')))
    await deployed.start(StubEngine(EngineReply(200, b'{"from":"embed"}')), "Engine-org-embed")

    replies = [
        await deployed.ask("/v1/completions", model="tide"),
        await deployed.ask("/v1/embeddings", model="org/embed"),
        await deployed.ask("/generate", prompt="sea"),
        await deployed.ask(model="nope"),
    ]

    assert [reply.json().get("from") for reply in replies[:3]] == ["tide", "embed", "tide"]
    assert (replies[3].status_code, replies[3].json()["error"]["code"]) == (404, "model_not_found")
    cards = (await deployed.http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == ["tide", "org/embed"]


async def test_usage_says_that_a_replica_cannot_store_its_own(deployed: Deployed, tmp_path: Path) -> None:
    await deployed.build(ledger={"url": f"sqlite:///{tmp_path}/usage.db"})
    assert (await deployed.http.get("/usage")).json()["unwritten_since"] is None

    await deployed.start(StubEngine(EngineReply(200)), unwritten_s=3600.0)

    async with asyncio.timeout(LIMIT_S):
        while (usage := (await deployed.http.get("/usage")).json())["unwritten_since"] is None:
            await asyncio.sleep(0.01)
    assert usage["unwritten_since"][:13] < usage["until"][:13]


async def test_a_queued_request_is_reported_until_a_replica_comes(
    deployed: Deployed,
) -> None:
    await deployed.build()
    asked = asyncio.create_task(deployed.ask(**STREAM))
    await deployed.handles["tide"].asked.wait()
    assert await deployed.stats("held_requests", "held_bytes", "ongoing_requests") == [1, 30, 0]
    async with asyncio.timeout(LIMIT_S):
        while "i1" not in read_reports("shop"):  # for the policy, should this replica drain
            await asyncio.sleep(0.001)

    engine = StubEngine(frames(FIRST, DONE))
    await deployed.start(engine)

    assert (await asked).content == FIRST + DONE
    assert engine.requests[0].message.queued_s > 0.0
    assert await deployed.stats("held_requests") == [0]
    async with asyncio.timeout(LIMIT_S):
        while read_reports("shop"):
            await asyncio.sleep(0.001)


async def test_a_queued_stream_begins_with_its_progress(deployed: Deployed) -> None:
    await deployed.build()
    knobs = {"keep_alive_interval_s": 0.001, "cold_wait_timeout_s": 0.05}
    await deployed.ingress.reconfigure({"autoscaling": {"tide": knobs}})

    reply = await deployed.ask(**STREAM)

    comment = rb": waiting for a replica of tide: phase=unknown eta_s=unknown waited_s=0\n\n"
    assert re.match(rb"(%b)+event: error\ndata: .*cold_wait_timeout" % comment, reply.content)
    assert (reply.status_code, await deployed.stats("held_requests")) == (200, [0])


@pytest.mark.parametrize("body", [{"model": "tide"}, STREAM])
async def test_the_wait_for_a_replica_counts_towards_a_deadline(
    deployed: Deployed, body: dict[str, Any]
) -> None:
    await deployed.build()
    await deployed.ingress.reconfigure({"autoscaling": {"tide": {"keep_alive_interval_s": 3600}}})

    reply = await deployed.http.post(
        "/v1/completions", json=body, headers={"X-Request-Timeout-Seconds": "0.05"}
    )

    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "deadline_exceeded")
    assert await deployed.stats("held_requests", "ongoing_requests") == [0, 0]


async def test_first_request_of_a_cold_model_is_reported_at_once(deployed: Deployed) -> None:
    await deployed.build()
    assert deployed.controller.reports == []

    asked = asyncio.create_task(deployed.ask(model="org/embed"))
    async with asyncio.timeout(LIMIT_S):
        await deployed.controller.came.wait()

    (report,) = deployed.controller.reports
    assert report.replica_id == REPLICA
    assert set(report.metrics) == set(await deployed.ingress.record_autoscaling_stats())
    assert deployed.controller.values("Engine-org-embed:held_requests") == [1]
    assert deployed.controller.values("Engine-tide:held_requests") == [0]
    asked.cancel()
    await asyncio.wait((asked,))


async def test_an_alias_is_in_force_with_the_next_request(deployed: Deployed) -> None:
    await deployed.build()
    engine = StubEngine(EngineReply(200, b"{}"))
    await deployed.start(engine, "Engine-org-embed")
    before = await deployed.ask(model="claude-opus-4")
    await deployed.ingress.reconfigure({"autoscaling": {"org/embed": {"aliases": ["claude-*"]}}})

    after = await deployed.ask(model="claude-opus-4")
    # Rejected knobs leave the previous knobs in force.
    await deployed.ingress.reconfigure({"autoscaling": {"org/embed": {"aliases": ["tide"]}}})
    last = await deployed.ask(model="claude-opus-4")

    assert [reply.status_code for reply in (before, after, last)] == [404, 200, 200]
    assert [request.message.alias for request in engine.requests] == ["claude-opus-4"] * 2


async def test_knobs_are_in_force_with_the_next_request_and_published(deployed: Deployed) -> None:
    await deployed.build()
    await deployed.ingress.reconfigure({"autoscaling": {"tide": {"max_held_requests": 0}}})

    reply = await deployed.ask(model="tide")

    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
    assert "max_held_requests = 0" in reply.json()["error"]["message"]
    knobs = (await deployed.http.get("/autoscaling/knobs")).json()
    assert knobs["models"]["tide"]["max_held_requests"] == 0
    assert read_served(stored(KNOBS, "shop")).models["Engine-tide"].knobs.max_held_requests == 0


async def test_only_clients_with_a_key_get_in(deployed: Deployed, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    await deployed.build(http={"api_keys_file": str(keys)})
    await deployed.start(StubEngine(EngineReply(200, b"{}")))

    assert (await deployed.ask(model="tide")).status_code == 401
    deployed.http.headers["Authorization"] = "Bearer sk-one"
    assert (await deployed.ask(model="tide")).status_code == 200


async def test_without_a_file_of_keys_there_is_no_ingress(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress_deployment, "appeared", partial(appeared, sleep=AsyncMock()))
    with pytest.raises(SettingsError, match=r"http\.api_keys_file"):
        await deployed.build(http={"api_keys_file": str(tmp_path / "missing")})


async def test_bodies_are_bounded_by_the_settings(deployed: Deployed) -> None:
    await deployed.build(http={"max_body_bytes": 1024})

    reply = await deployed.ask(model="tide", prompt="x" * 2000)

    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")


CHAT = "/v1/chat/completions"


async def test_lines_of_a_batch_are_answered_as_they_become_ready(deployed: Deployed) -> None:
    await deployed.build()
    engine = StubEngine(EngineReply(200, b'{"from":"tide"}'))
    await deployed.start(engine)
    lines = [BatchLine(1, b'{"model":"tide"}'), BatchLine(2, b'{"model":"nope"}')]

    parts = [part async for part in deployed.ingress.answer_lines("", "batch-1", CHAT, "tide", lines)]

    found = {answer.number: answer.status for part in parts for answer in part.answers}
    assert found == {1: 200, 2: 404}
    assert {part.model for part in parts} == {"tide"}
    (request,) = engine.requests
    assert request.caller.lane == "background"


async def test_lines_wanted_follow_the_replicas_and_the_knob(deployed: Deployed) -> None:
    await deployed.build()
    line = [BatchLine(1, b'{"model":"nope"}')]

    async def wanted(model: str) -> tuple[str, int]:
        parts = [part async for part in deployed.ingress.answer_lines("", "batch-1", CHAT, model, line)]
        (told,) = {(part.model, part.wanted) for part in parts}
        return told

    places = release_limit(deployed.settings.models[0])
    assert await wanted("tide") == ("tide", 2 * places)  # before there is a replica, those of one
    for _ in range(3):
        await deployed.start(StubEngine(EngineReply(200)))
    assert await wanted("tide") == ("tide", 6 * places)
    await deployed.ingress.reconfigure(
        {"autoscaling": {"tide": {"batch_concurrency": 7, "aliases": ["gpt-*"]}}}
    )
    assert await wanted("gpt-4o") == ("tide", 7)
    assert await wanted("unknown") == ("", 1)  # no text of a client becomes the name of a series


async def test_closing_a_call_frees_its_lines(deployed: Deployed) -> None:
    await deployed.build()
    engine = MuteEngine()
    await deployed.start(engine)
    parts = deployed.ingress.answer_lines("", "batch-1", CHAT, "tide", [BatchLine(1, b'{"model":"tide"}')])

    async with asyncio.timeout(LIMIT_S):
        assert (await anext(parts)).answers == ()  # it says how many lines are wanted
        await engine.entered.wait()
        await parts.aclose()
        await engine.left.wait()

    assert engine.cancelled


async def test_readiness_tells_of_every_model(deployed: Deployed) -> None:
    await deployed.build()
    await deployed.start(StubEngine(EngineReply(200)))

    reply = await deployed.http.get("/ready")

    models = reply.json()["models"]
    assert (reply.status_code, models["tide"]["state"], models["tide"]["replicas"]) == (503, "up", 1)
    assert reply.json()["zygote"] is True
    assert (models["org/embed"]["state"], models["org/embed"]["phase"]) == ("loading", "deploying")
