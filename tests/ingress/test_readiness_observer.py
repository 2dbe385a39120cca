"""The observer that joins what Ray, the replicas and the policy say of readiness."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview

from serve_app.api.health import ModelReadiness, Readiness
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.serve_status import ServeStatus
from serve_app.ingress.cold_start_progress import StoredState, state_reader
from serve_app.ingress.readiness import ServeObserver
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.settings.knobs import Knobs, LiveKnobs
from serve_app.wire.documents import STATUS, put_document
from serve_app.wire.phases import publish_phase
from tests.ingress.test_readiness import BUILD, BUILD_SHORTENED, DEAD, TIDE, deployment, phase
from tests.stub_engine import LIMIT_S
from tests.stub_kv import StubKv

SETTLED: dict[str, Any] = {
    "ready": 0, "starting": 0, "pending": 0, "pending_s": 0, "reason": "",
    "cold_start_s": None, "phases_s": {}, "warm_node_phases_s": {}, "cold_node_phases_s": {},
}  # fmt: skip


class Watched:
    """An observer of one model, what Ray and the replicas report, and a clock."""

    def __init__(self, zygote: bool = True, wait_s: float = 0.8) -> None:
        self.now = 1_700_000_000.0
        self.deployments: dict[str, DeploymentStatusOverview] = {}
        self.failed_rollout = ""
        self.replicas = ReplicaSet()
        self.looks = 0
        self.controller, self.gcs = threading.Event(), threading.Event()
        """Set while Ray Serve's controller and the GCS answer."""
        self.answer()
        self.live = LiveKnobs({"tide": Knobs()})
        self._read = state_reader("shop", ["Engine-tide"], lambda: self.now, lambda: self.now)
        self.observer = ServeObserver(
            [TIDE],
            {"Engine-tide": self.replicas},
            self.live,
            BoundedCall("Ray Serve's status of shop", self._statuses, 0.5, lambda: self.now),
            BoundedCall("stored state of shop", self._stored, 0.5, lambda: self.now),
            zygote,
            lambda: self.now,
            wait_s,
        )

    def answer(self) -> None:
        self.controller.set()
        self.gcs.set()

    def _statuses(self) -> ServeStatus:
        self.looks += 1
        assert self.controller.wait(LIMIT_S)
        return ServeStatus(dict(self.deployments), self.failed_rollout)

    def _stored(self) -> StoredState:
        assert self.gcs.wait(LIMIT_S)
        return self._read()

    def up(self, *names: str) -> None:
        self.replicas.update({name: {"address": f"{name}:1", "token": "t", "identity": ""} for name in names})

    async def readiness(self, after_s: float = 1.0) -> Readiness:
        self.now += after_s
        return await self.observer.readiness()

    async def tide(self, after_s: float = 1.0) -> ModelReadiness:
        (found,) = (await self.readiness(after_s)).models
        return found

    def write_status(self, **more: Any) -> None:
        """Write the policy's status."""
        put_document(STATUS, "shop", {"at": self.now, "models": {"Engine-tide": {**SETTLED, **more}}})


@pytest.fixture
def watched(kv: StubKv) -> Iterator[Watched]:
    made = Watched()
    yield made
    made.answer()


@pytest.fixture
def impatient(kv: StubKv) -> Iterator[Watched]:
    """One whose clients wait only for a moment."""
    made = Watched(wait_s=0.01)
    yield made
    made.answer()


async def test_readiness_joins_ray_replicas_and_policy(watched: Watched, kv: StubKv) -> None:
    assert (await watched.tide()).phase == "deploying"

    watched.deployments["Engine-tide"] = deployment(STARTING=1)
    watched.write_status(pending=1, pending_s=12, reason="no node has 1 GPU free")
    assert (await watched.tide()).phase == "pending_capacity"

    publish_phase("shop", "Engine-tide", "r1", json.dumps(phase("imports", 1700000100)))
    kv.replicas = {("shop", "Engine-tide", "r1")}
    assert (await watched.tide()).phase == "imports"

    kv.replicas.clear()
    assert (await watched.tide()).phase == "pending_capacity"  # it was killed

    watched.up("r2")
    assert (await watched.tide()).state == "up"


@pytest.mark.parametrize("zygote", [True, False])
async def test_readiness_reports_where_the_next_replica_would_start(kv: StubKv, zygote: bool) -> None:
    watched = Watched(zygote)
    watched.write_status(warm_node=zygote, warm_node_start_s=3.40049, cold_node_start_s=None)

    readiness = await watched.readiness()

    (tide,) = readiness.models
    assert (readiness.zygote, tide.warm_node) == (zygote, zygote)
    assert (tide.warm_node_start_s, tide.cold_node_start_s) == (3.4, None)
    assert (await watched.tide(60)).warm_node is None  # the policy is gone


async def test_readiness_gives_the_reason_of_a_failed_rollout(watched: Watched) -> None:
    watched.up("r1")
    watched.failed_rollout = BUILD

    assert (await watched.tide()).reason == BUILD_SHORTENED


async def test_readiness_uses_the_present_knob(watched: Watched) -> None:
    watched.deployments["Engine-tide"] = deployment(DeploymentStatus.HEALTHY)
    assert (await watched.tide()).state == "loading"

    watched.live.apply({"autoscaling": {"tide": {"min_replicas": 0}}})

    assert (await watched.tide()).state == "idle_at_zero"


async def test_ray_is_asked_at_most_twice_a_second(watched: Watched) -> None:
    await asyncio.gather(*(watched.observer.readiness() for _ in range(100)))
    assert watched.looks == 1
    await watched.readiness(0.4)
    assert watched.looks == 1
    await watched.readiness(0.2)
    assert watched.looks == 2


async def test_ray_is_asked_again_after_a_replica_left(watched: Watched) -> None:
    """The model has just gone to zero: that is idle, and not a loss."""
    watched.live.apply({"autoscaling": {"tide": {"min_replicas": 0}}})
    watched.up("r1")
    watched.deployments["Engine-tide"] = deployment(DeploymentStatus.HEALTHY, RUNNING=1)
    assert (await watched.tide()).state == "up"

    watched.up()
    watched.deployments["Engine-tide"] = deployment(DeploymentStatus.HEALTHY, STOPPING=1)

    assert (await watched.tide(0.1)).state == "idle_at_zero"


@pytest.mark.parametrize(("silent", "who"), [("controller", "Ray Serve's controller"), ("gcs", "Ray's GCS")])
async def test_a_model_with_a_replica_is_up_without_ray(impatient: Watched, silent: str, who: str) -> None:
    watched = impatient
    watched.up("r1", "r2")
    watched.deployments["Engine-tide"] = deployment(RUNNING=2, STARTING=1)
    while True:  # the first answers may take longer than its clients wait
        control = (await watched.readiness(0.0)).control_plane
        if control is not None and control.document()["age_s"] is not None:
            break
    getattr(watched, silent).clear()

    for _ in range(5):
        readiness = await watched.readiness()

    (tide,) = readiness.models
    assert (tide.state, tide.replicas, tide.target_replicas) == ("up", 2, 3)
    assert readiness.control_plane is not None
    document = readiness.control_plane.document()
    assert (document["reachable"], document["age_s"]) == (False, 5.0)
    assert document["reason"] == f"{who} has not answered for 5.0 s"

    # The last replica is lost meanwhile.
    for replica in list(watched.replicas.listed()):
        watched.replicas.keep_away(replica, DEAD)
    lost = await watched.tide()
    assert (lost.state, lost.ready, lost.replicas) == ("loading", False, 0)
    assert lost.reason == f"no replica can take requests: r1: {DEAD}; r2: {DEAD}"

    watched.answer()
    async with asyncio.timeout(LIMIT_S):
        while (control := (await watched.readiness()).control_plane) is None or control.reason:
            await asyncio.sleep(0)


async def test_readiness_uses_no_thread_of_the_event_loops_pool(
    impatient: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other calls that wait for Ray may have taken all of them."""
    impatient.controller.clear()
    impatient.gcs.clear()
    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", _no_thread)

    for _ in range(3):
        assert (await impatient.tide()).phase == "waiting_for_ray"

    names = [thread.name for thread in threading.enumerate()]
    assert names.count("Ray Serve's status of shop") == names.count("stored state of shop") == 1


def _no_thread(*arguments: object) -> Any:
    raise AssertionError("the event loop's own pool of threads was used")


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 50.0])
async def test_a_replicas_clock_may_be_wrong(watched: Watched, kv: StubKv, ahead_s: float) -> None:
    watched.deployments["Engine-tide"] = deployment(STARTING=1)
    kv.replicas = {("shop", "Engine-tide", "r1")}
    await watched.tide()
    began = phase("imports", watched.now + ahead_s)
    publish_phase("shop", "Engine-tide", "r1", json.dumps(began))
    await watched.tide()

    lasted = (await watched.tide(10.0)).phase_seconds

    assert lasted is not None
    assert 10.0 <= lasted <= 11.0  # it was first seen at the second reading, a second after the first
