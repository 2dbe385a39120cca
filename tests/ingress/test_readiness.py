"""Readiness of a model, and the observer that joins what Ray, the replicas and the policy say."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from ray.serve._private.common import ReplicaState
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview, DeploymentStatusTrigger

from serve_app.api.health import ModelReadiness, Readiness
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.serve_status import ServeStatus
from serve_app.ingress import readiness
from serve_app.ingress.cold_start_progress import StoredState, state_reader
from serve_app.ingress.readiness import GIVEN_UP, Known, LiveReplicas, ServeObserver
from serve_app.ingress.replica_set import ReplicaSet
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
    failed_rollout: str = "",
) -> ModelReadiness:
    """Readiness of the model at `NOW`."""
    known = Known(deployment, phases or {}, scaling, unreachable, failed_rollout)
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


ABOUT = {"warm_node": False, "identity": ""}
"""What each phase document has of its replica."""


def phase(name: str, since: float, **more: Any) -> dict[str, Any]:
    return {"phase": name, "since": since, "durations_s": {"imports": 7.12345}, **ABOUT, **more}


def failed(since: float) -> dict[str, Any]:
    return phase("failed", since, during="weights_and_kv_cache", reason="OSError: no such model")


Expected = tuple[str, str | None, float | None, str | None]
WHY = "Ray's GCS has not answered for 7.0 s"
OUT = LiveReplicas(0, {"r1": DEAD})
NO_PLACE = {"pending": 2, "pending_s": 31, "reason": "no node has 1 GPU free"}
LOST = f"no replica can take requests: r1: {DEAD}"
FAILURE = "weights_and_kv_cache: OSError: no such model"
HEALTHY = DeploymentStatus.HEALTHY
TRACEBACK = """The deployment failed to start 3 times in a row during a rolling update. This may be due to its
constructor. Error:
ray::ServeReplica.initialize()
  File "engine.py", line 5, in build
OSError: no such folder
"""
BUILD = """Deploying app 'shop' failed with exception:
Traceback (most recent call last):
  File "app.py", line 5, in build
SettingsError: the settings are not valid:
- models[0].max_num_seq: not a setting
"""
BUILD_SHORTENED = (
    "the last rollout failed: Deploying app 'shop' failed with exception: "
    "models[0].max_num_seq: not a setting "
    "(traceback: session_latest/logs/serve/controller_*.log in Ray's folder)"
)
SHORTENED = (
    "The deployment failed to start 3 times in a row during a rolling update: OSError: no such folder "
    "(traceback: session_latest/logs/serve/controller_*.log in Ray's folder)"
)
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
        ("failed", None, None, f"{FAILURE}; {GIVEN_UP}"),
    ),
    "it failed and nothing starts": (
        judge(deployment(DeploymentStatus.DEPLOY_FAILED, TRACEBACK), {"r1": failed(NOW - 5)}),
        ("failed", None, None, f"{FAILURE}; {GIVEN_UP}"),
    ),
    "an update failed, and replicas of the former version serve": (
        judge(deployment(DeploymentStatus.DEPLOY_FAILED, TRACEBACK, RUNNING=1), live=LiveReplicas(1)),
        ("up", None, None, f"{SHORTENED}; {GIVEN_UP}"),
    ),
    "an update failed, and the replica has said why": (
        judge(
            deployment(DeploymentStatus.DEPLOY_FAILED, TRACEBACK, RUNNING=1),
            {"r2": failed(NOW - 5), "r1": phase("ready", NOW - 50)},
            live=LiveReplicas(1),
        ),
        ("up", None, None, f"{FAILURE}; {GIVEN_UP}"),
    ),
    "the build failed, and replicas of the former version serve": (
        judge(None, live=LiveReplicas(1), failed_rollout=BUILD), ("up", None, None, BUILD_SHORTENED)
    ),
    "the build failed, and no replica serves": (
        judge(None, failed_rollout=BUILD), ("failed", None, None, BUILD_SHORTENED)
    ),
    "the ingress failed, and the model is at zero": (
        judge(deployment(HEALTHY), min_replicas=0, failed_rollout="no such keys"),
        ("idle_at_zero", None, None, "the last rollout failed: no such keys"),
    ),
    "Ray alone has a traceback": (
        judge(deployment(DeploymentStatus.DEPLOY_FAILED, TRACEBACK)),
        ("failed", None, None, f"{SHORTENED}; {GIVEN_UP}"),
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

    reason = {
        DeploymentStatus.UNHEALTHY: "a replica failed",
        DeploymentStatus.DEPLOY_FAILED: f"a replica failed; {GIVEN_UP}",
    }.get(status)
    assert (judged.state, judged.reason, judged.replicas_out) == ("up", reason, {"r1": DEAD})
    assert (judged.replicas, judged.target_replicas) == (2, 4)
    assert judged.startup_seconds == {"imports": 7.123}


def test_ready_names_the_kinds_that_no_replica_has_run() -> None:
    replicas = ReplicaSet()
    left = {"r1": ["adapter"], "r2": ["adapter", "grammar"], "r3": []}
    replicas.update({name: {"address": "10.0.0.1:1", "token": "t", "identity": ""} for name in left})
    for replica in replicas.listed():
        replica.first_runs_left = left[replica.replica_id]

    judged = judge(deployment(HEALTHY, RUNNING=3), live=LiveReplicas.of(replicas))

    assert (judged.state, judged.first_runs_left) == ("up", ["adapter", "grammar"])


def test_a_missing_policy_is_told() -> None:
    judged = judge(deployment(HEALTHY), scaling=None)

    assert (judged.state, judged.phase) == ("loading", "waiting_for_the_policy")
    assert judged.reason is not None
    assert "lacks autoscaling_policy" in judged.reason
    assert judge(deployment(STARTING=1), scaling=None).phase == "waiting_for_a_node"


# The observer.

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
