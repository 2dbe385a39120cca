"""Readiness of a model, by what Ray, the replicas and the policy say."""

from typing import Any

import pytest
from ray.serve._private.common import ReplicaState
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview, DeploymentStatusTrigger

from serve_app.api.health import ModelReadiness
from serve_app.ingress import readiness
from serve_app.ingress.readiness import GIVEN_UP, Known, LiveReplicas
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.settings.tree import ModelSettings

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
