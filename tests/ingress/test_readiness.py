"""Readiness of a model, and the observer that joins what Ray, the replicas and the policy say."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ray.serve._private.common import ReplicaState
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview, DeploymentStatusTrigger

from serve_app.api.health import ModelReadiness, Readiness
from serve_app.ingress import readiness
from serve_app.ingress.cold_start_progress import stored_state
from serve_app.ingress.readiness import Known, LiveReplicas, ServeObserver
from serve_app.settings import ModelSettings
from serve_app.settings.knobs import Knobs, LiveKnobs
from serve_app.wire.documents import STATUS, put_document
from serve_app.wire.phases import publish_phase
from tests.stub_engine import LIMIT_S
from tests.stub_kv import StubKv

NOW = 1_700_000_100.0
TIDE = ModelSettings(name="tide")
PLACED: dict[str, Any] = {"pending": 0, "pending_s": 0, "reason": ""}
"""What the policy says of a model that waits for nothing."""
DEAD = "its engine core has died"


def judge(
    deployment: DeploymentStatusOverview | None,
    phases: dict[str, dict[str, Any]] | None = None,
    *,
    live: LiveReplicas | None = None,
    min_replicas: int = 1,
    scaling: dict[str, Any] | None = PLACED,
    unreachable: str = "",
) -> ModelReadiness:
    """Readiness of the model at `NOW`."""
    known = Known(deployment, phases or {}, scaling, unreachable)
    return readiness.judge(TIDE, min_replicas, live or LiveReplicas(), known, NOW)


def deployment(
    status: DeploymentStatus = DeploymentStatus.UPDATING, message: str = "", **replicas: int
) -> DeploymentStatusOverview:
    """Ray Serve's own status, so that what Ray renames is noticed."""
    return DeploymentStatusOverview(
        status=status,
        status_trigger=DeploymentStatusTrigger.CONFIG_UPDATE_STARTED,
        replica_states={ReplicaState(state): count for state, count in replicas.items()},
        message=message,
    )


def phase(name: str, since: float, **more: Any) -> dict[str, Any]:
    return {"phase": name, "since": since, "durations_s": {"imports": 7.12345}, **more}


def failed(since: float) -> dict[str, Any]:
    return phase("failed", since, during="weights_and_kv_cache", reason="OSError: no such model")


Expected = tuple[str, str | None, float | None, str | None]
WHY = "Ray's GCS has not answered for 7.0 s"
OUT = LiveReplicas(0, {"r1": DEAD})
NO_PLACE = {"pending": 2, "pending_s": 31, "reason": "no node has 1 GPU free"}
LOST = f"no replica can take requests: r1: {DEAD}"
FAILURE = "weights_and_kv_cache: OSError: no such model"
HEALTHY = DeploymentStatus.HEALTHY
CASES: dict[str, tuple[ModelReadiness, Expected]] = {
    "Ray does not know the deployment yet": (judge(None), ("loading", "deploying", None, None)),
    "up before Ray has ever answered": (
        judge(None, live=LiveReplicas(2), unreachable=WHY), ("up", None, None, None)
    ),
    "all replicas are out": (
        judge(deployment(HEALTHY, RUNNING=1), {"r1": phase("ready", NOW - 9)}, live=OUT, min_replicas=0),
        ("loading", "waiting_for_replacement", None, LOST),
    ),
    "all replicas are out and Ray does not answer": (
        judge(deployment(HEALTHY, RUNNING=1), live=OUT, unreachable=WHY),
        ("loading", "waiting_for_replacement", None, LOST),
    ),
    "one starts beside a replica that is out": (
        judge(
            deployment(STARTING=1), {"r1": phase("ready", NOW - 1), "r2": phase("imports", NOW - 3)}, live=OUT
        ),
        ("loading", "imports", 3.0, LOST),
    ),
    "Ray calls it running and has not told this process": (
        judge(deployment(HEALTHY, RUNNING=1), {"r1": phase("ready", NOW - 0.5)}),
        ("loading", "ready", 0.5, None),
    ),
    "at zero while nobody could wake it": (
        judge(deployment(HEALTHY), min_replicas=0, unreachable=WHY), ("loading", "waiting_for_ray", None, WHY)
    ),
    "one loads while Ray does not answer": (
        judge(deployment(STARTING=1), {"r1": phase("warm_up", NOW - 9)}, unreachable=WHY),
        ("loading", "warm_up", 9.0, WHY),
    ),
    "none is wanted": (judge(deployment(HEALTHY), min_replicas=0), ("idle_at_zero", None, None, None)),
    "the last one leaves": (
        judge(deployment(STOPPING=1), {"r1": phase("draining", NOW - 9)}, min_replicas=0),
        ("idle_at_zero", None, None, None),
    ),
    "the failed one has been made up for": (
        judge(deployment(HEALTHY), {"r1": failed(NOW - 5000)}, min_replicas=0),
        ("idle_at_zero", None, None, None),
    ),
    "one must be there": (judge(deployment(HEALTHY)), ("loading", "waiting_for_a_node", None, None)),
    "it wakes from zero": (
        judge(deployment(DeploymentStatus.UPSCALING, STARTING=2), min_replicas=0),
        ("loading", "waiting_for_a_node", None, None),
    ),
    "it waits for a node": (
        judge(deployment(message="waiting for 1 GPU", STARTING=1)),
        ("loading", "waiting_for_a_node", None, "waiting for 1 GPU"),
    ),
    "the newest phase counts": (
        judge(deployment(STARTING=2), {"r1": phase("kv_cache", NOW - 3.25), "r2": phase("imports", NOW - 9)}),
        ("loading", "kv_cache", 3.25, None),
    ),
    "one leaves and one comes": (
        judge(
            deployment(STARTING=1, STOPPING=1),
            {"r1": phase("draining", NOW - 1), "r2": phase("imports", NOW - 4)},
        ),
        ("loading", "imports", 4.0, None),
    ),
    "it failed for good": (
        judge(
            deployment(DeploymentStatus.DEPLOY_FAILED, "three times in a row", STARTING=1),
            {"r1": failed(NOW - 5), "r0": phase("imports", NOW - 50)},
        ),
        ("failed", None, None, FAILURE),
    ),
    "Ray alone has a reason": (
        judge(deployment(DeploymentStatus.UNHEALTHY, "no such image")),
        ("failed", None, None, "no such image"),
    ),
    "nothing was started after a failure": (
        judge(deployment(), {"r1": failed(NOW - 5)}), ("failed", None, None, FAILURE)
    ),
    "it may rest at zero and cannot start": (
        judge(deployment(DeploymentStatus.UPSCALING), {"r1": failed(NOW - 5)}, min_replicas=0),
        ("failed", None, None, FAILURE),
    ),
    "Ray tries again after a failure": (
        judge(deployment(STARTING=1), {"r1": failed(NOW - 5)}), ("loading", "failed", 5.0, FAILURE)
    ),
    "a newer one is under way after a failure": (
        judge(deployment(STARTING=1), {"r1": failed(NOW - 50), "r2": phase("imports", NOW - 2)}),
        ("loading", "imports", 2.0, None),
    ),
    "the cluster has no place": (
        judge(deployment(STARTING=2), scaling=NO_PLACE),
        ("loading", "pending_capacity", 31, "no node has 1 GPU free"),
    ),
    "one loads and the cluster has no place for another": (
        judge(deployment(STARTING=2), {"r1": phase("imports", NOW - 2)}, scaling=NO_PLACE),
        ("loading", "imports", 2.0, None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_readiness_of_a_model(case: str) -> None:
    judged, expected = CASES[case]

    assert (judged.state, judged.phase, judged.phase_seconds, judged.reason) == expected
    assert judged.ready == (expected[0] in ("up", "idle_at_zero"))


@pytest.mark.parametrize("status", list(DeploymentStatus))
def test_a_model_with_a_usable_replica_is_up(status: DeploymentStatus) -> None:
    judged = judge(
        deployment(status, "a replica failed", RUNNING=3, STARTING=1, STOPPING=3),
        {"r2": phase("ready", NOW - 9), "r3": failed(NOW - 10)},
        live=LiveReplicas(2, {"r1": DEAD}),
        unreachable=WHY,
    )

    assert (judged.state, judged.reason, judged.replicas_out) == ("up", None, {"r1": DEAD})
    assert (judged.replicas, judged.target_replicas) == (2, 4)
    assert judged.startup_seconds == {"imports": 7.123}


def test_a_missing_policy_is_told() -> None:
    judged = judge(deployment(HEALTHY), scaling=None)

    assert (judged.state, judged.phase) == ("loading", "waiting_for_the_policy")
    assert judged.reason is not None
    assert "lacks autoscaling_policy" in judged.reason
    assert judge(deployment(STARTING=1), scaling=None).phase == "waiting_for_a_node"


# What it joins, when that is said, and when it is not.

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


async def test_readiness_joins_ray_replicas_and_policy(watched: Watched, kv: StubKv) -> None:
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


async def test_ray_is_asked_at_most_twice_a_second(
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


async def test_ray_is_asked_again_after_a_replica_left(watched: Watched) -> None:
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
async def test_a_model_with_a_replica_is_up_without_ray(watched: Watched, silent: str, who: str) -> None:
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
async def test_the_last_replicas_loss_is_told_without_ray(watched: Watched) -> None:
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
async def test_readiness_uses_no_thread_of_the_event_loops_pool(
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


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 50.0])
async def test_a_replicas_clock_may_be_wrong(watched: Watched, kv: StubKv, ahead_s: float) -> None:
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
