"""Readiness over what Ray says, when it says it, and when it does not."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview

from serve_app.api.health import ModelReadiness, Readiness
from serve_app.ingress import readiness
from serve_app.ingress.cold_start_progress import stored_state
from serve_app.ingress.readiness import LiveReplicas, ServeObserver
from serve_app.settings import ModelSettings
from serve_app.settings.knobs import Knobs
from serve_app.settings.live_knobs import LiveKnobs
from serve_app.wire.documents import STATUS, put_document
from serve_app.wire.phases import publish_phase
from tests.ingress.test_readiness import deployment
from tests.stub_engine import LIMIT_S
from tests.stub_kv import StubKv

TIDE = ModelSettings(name="tide")
SETTLED: dict[str, Any] = {
    "ready": 0, "starting": 0, "pending": 0, "pending_s": 0, "reason": "",
    "cold_start_s": None, "phases_s": {},
}  # fmt: skip


class Clocks:
    """Stands in for `time`: both clocks stand still until they are moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class Watched:
    """A `ServeObserver` of one model, over what the test has Ray say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kv: StubKv) -> None:
        self.clocks = Clocks()
        self.deployments: dict[str, DeploymentStatusOverview] = {}
        self.replicas = LiveReplicas()
        self.looks = 0
        self.controller = threading.Event()
        """Set while Ray Serve's controller answers."""
        self.gcs = threading.Event()
        self.controller.set()
        self.gcs.set()
        monkeypatch.setattr(readiness, "deployment_statuses", self._statuses)
        monkeypatch.setattr(readiness, "time", self.clocks)
        monkeypatch.setattr(readiness, "live_replicas", lambda deployment: self.replicas)
        get = kv._internal_kv_get

        def get_slowly(key: str, *, namespace: str) -> bytes | None:
            assert self.gcs.wait(LIMIT_S)
            return get(key, namespace=namespace)

        monkeypatch.setattr(kv, "_internal_kv_get", get_slowly)
        self.live = LiveKnobs({"tide": Knobs()})
        self.stored = stored_state("shop", ["Engine-tide"], self.clocks.monotonic, self.clocks.time)
        self.observer = ServeObserver("shop", [TIDE], self.live, self.stored)

    def _statuses(self, app: str, names: list[str]) -> dict[str, DeploymentStatusOverview]:
        assert (app, names) == ("shop", ["Engine-tide"])
        self.looks += 1
        assert self.controller.wait(LIMIT_S)
        return dict(self.deployments)

    async def readiness(self) -> Readiness:
        """A second after the last."""
        self.clocks.now += 1.0
        return await self.observer.readiness()

    async def tide(self) -> ModelReadiness:
        (found,) = (await self.readiness()).models
        return found

    def says(self, *, ahead_s: float = 0.0, **more: Any) -> None:
        """What the policy writes down, whose clock is so far ahead."""
        status = {"at": self.clocks.now + ahead_s, "models": {"Engine-tide": {**SETTLED, **more}}}
        put_document(STATUS, "shop", status)


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch, kv: StubKv) -> AsyncIterator[Watched]:
    made = Watched(monkeypatch, kv)
    yield made
    made.controller.set()
    made.gcs.set()


async def test_readiness_joins_what_ray_the_replicas_and_the_policy_say(watched: Watched, kv: StubKv) -> None:
    assert (await watched.tide()).phase == "deploying"

    watched.deployments["Engine-tide"] = deployment(STARTING=1)
    watched.says(pending=1, pending_s=12, reason="no node has 1 GPU free")
    assert (await watched.tide()).phase == "pending_capacity"

    publish_phase("shop", "Engine-tide", "r1", '{"phase":"imports","since":1700000100,"durations_s":{}}')
    kv.replicas = {("shop", "Engine-tide", "r1")}
    assert (await watched.tide()).phase == "imports"

    kv.replicas.clear()
    assert (await watched.tide()).phase == "pending_capacity"  # it was killed

    watched.replicas = LiveReplicas(1)
    assert (await watched.tide()).state == "up"


@pytest.mark.parametrize("zygote", [True, False])
async def test_readiness_tells_where_the_next_replica_would_start(watched: Watched, zygote: bool) -> None:
    watched.observer = ServeObserver("shop", [TIDE], watched.live, watched.stored, zygote)
    watched.says(warm_node=zygote, warm_node_start_s=3.40049, cold_node_start_s=None)

    readiness = await watched.readiness()

    (tide,) = readiness.models
    assert (readiness.zygote, tide.warm_node) == (zygote, zygote)
    assert (tide.warm_node_start_s, tide.cold_node_start_s) == (3.4, None)

    watched.clocks.now += 60  # the policy is gone
    assert (await watched.tide()).warm_node is None


async def test_readiness_goes_by_the_knob_as_it_stands(watched: Watched) -> None:
    watched.deployments["Engine-tide"] = deployment(DeploymentStatus.HEALTHY)
    assert (await watched.tide()).state == "loading"

    watched.live.apply({"autoscaling": {"tide": {"min_replicas": 0}}})

    assert (await watched.tide()).state == "idle_at_zero"


async def test_what_a_policy_said_that_is_gone_is_not_believed(watched: Watched) -> None:
    watched.deployments["Engine-tide"] = deployment(DeploymentStatus.HEALTHY)
    watched.says()
    assert (await watched.tide()).phase == "waiting_for_a_node"

    watched.clocks.now += 60

    assert (await watched.tide()).phase == "waiting_for_the_policy"


async def test_ray_is_asked_at_most_twice_a_second_and_once_for_all_who_ask_together(
    watched: Watched,
) -> None:
    await asyncio.gather(*(watched.observer.readiness() for _ in range(100)))
    assert watched.looks == 1

    watched.clocks.now += 0.4
    await watched.observer.readiness()
    assert watched.looks == 1

    watched.clocks.now += 0.2
    await watched.observer.readiness()
    assert watched.looks == 2


async def test_what_ray_said_before_a_replica_went_here_is_asked_again(watched: Watched) -> None:
    """The model has just gone to zero, and was running half a second ago: that is idle, and not a loss."""
    watched.live.apply({"autoscaling": {"tide": {"min_replicas": 0}}})
    watched.replicas = LiveReplicas(1)
    watched.deployments["Engine-tide"] = deployment(DeploymentStatus.HEALTHY, RUNNING=1)
    assert (await watched.tide()).state == "up"

    watched.replicas = LiveReplicas()
    watched.deployments["Engine-tide"] = deployment(DeploymentStatus.HEALTHY, STOPPING=1)
    watched.clocks.now += 0.1
    (found,) = (await watched.observer.readiness()).models

    assert found.state == "idle_at_zero"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_WAIT_S", 0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("silent", "who"), [("controller", "Ray Serve's controller"), ("gcs", "Ray's GCS")])
async def test_a_model_with_a_replica_is_up_and_answered_for_while_ray_does_not_answer(
    watched: Watched, silent: str, who: str
) -> None:
    watched.replicas = LiveReplicas(2)
    watched.deployments["Engine-tide"] = deployment(RUNNING=2, STARTING=1)
    await watched.readiness()
    getattr(watched, silent).clear()

    for _ in range(5):
        readiness = await watched.readiness()

    (tide,) = readiness.models
    assert (tide.state, tide.replicas, tide.target_replicas) == ("up", 2, 3)
    assert readiness.control_plane is not None
    document = readiness.control_plane.document()
    assert (document["reachable"], document["age_s"]) == (False, 5.0)
    assert document["reason"] == f"{who} has not answered for 5.0 s"

    getattr(watched, silent).set()
    async with asyncio.timeout(LIMIT_S):
        while True:
            control = (await watched.readiness()).control_plane
            assert control is not None
            if not control.reason:
                break
            await asyncio.sleep(0)


@pytest.mark.usefixtures("impatient")
async def test_the_loss_of_the_last_replica_is_told_while_nothing_of_ray_answers(watched: Watched) -> None:
    watched.replicas = LiveReplicas(1)
    watched.deployments["Engine-tide"] = deployment(RUNNING=1)
    assert (await watched.tide()).state == "up"
    watched.controller.clear()
    watched.gcs.clear()

    watched.replicas = LiveReplicas(0, {"r1": "its engine core has died"})
    lost = await watched.tide()

    assert (lost.state, lost.ready, lost.replicas) == ("loading", False, 0)
    assert lost.reason == "no replica can take requests: r1: its engine core has died"


@pytest.mark.usefixtures("impatient")
async def test_readiness_needs_no_thread_of_the_event_loops_own_pool(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may all be taken by others who wait for Ray; and what never returns would take them."""
    watched.controller.clear()
    watched.gcs.clear()
    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", _no_thread)

    for _ in range(3):
        assert (await watched.tide()).phase == "waiting_for_ray"

    names = [thread.name for thread in threading.enumerate()]
    assert names.count("Ray Serve's status of shop") == names.count("stored state of shop") == 1


def _no_thread(*arguments: object) -> Any:
    raise AssertionError("the event loop's own pool of threads was used")


@pytest.mark.parametrize("ahead_s", [-3600.0, -50.0, 0.0, 50.0, 3600.0])
async def test_a_policy_lives_whatever_its_nodes_clock_says(watched: Watched, ahead_s: float) -> None:
    watched.deployments["Engine-tide"] = deployment(STARTING=0)
    for _ in range(3):
        watched.says(ahead_s=ahead_s, pending=1, pending_s=12, reason="no node has 1 GPU free")
        watched.clocks.now += 10  # it writes every ten seconds
        assert (await watched.tide()).phase == "pending_capacity"

    watched.clocks.now += 59  # and then it is gone
    assert (await watched.tide()).phase == "waiting_for_the_policy"


@pytest.mark.parametrize("ahead_s", [-3600.0, -50.0, 0.0, 50.0, 3600.0])
async def test_a_phase_lasts_as_long_as_this_node_has_seen_it(
    watched: Watched, kv: StubKv, ahead_s: float
) -> None:
    watched.deployments["Engine-tide"] = deployment(STARTING=1)
    kv.replicas = {("shop", "Engine-tide", "r1")}
    await watched.tide()
    began = watched.clocks.now + ahead_s
    publish_phase(
        "shop", "Engine-tide", "r1", json.dumps({"phase": "imports", "since": began, "durations_s": {}})
    )
    await watched.tide()
    watched.clocks.now += 9

    lasted = (await watched.tide()).phase_seconds

    assert lasted is not None
    assert 10.0 <= lasted <= 11.0  # it was first seen at the second reading, a second after the first
