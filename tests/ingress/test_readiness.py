from typing import Any

import pytest
from ray.serve._private.common import ReplicaState
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview, DeploymentStatusTrigger

from serve_app.api.health import ModelReadiness
from serve_app.ingress import readiness
from serve_app.ingress.readiness import Known, LiveReplicas
from serve_app.settings import ModelSettings

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


def test_a_deployment_ray_does_not_know_yet_is_being_deployed() -> None:
    judged = judge(None)

    assert (judged.model, judged.state, judged.phase) == ("tide", "loading", "deploying")


@pytest.mark.parametrize("status", list(DeploymentStatus))
def test_a_model_with_a_usable_replica_is_up_whatever_else_goes_on(status: DeploymentStatus) -> None:
    judged = judge(
        deployment(status, "a replica failed", RUNNING=3, STARTING=1, STOPPING=3),
        {"r3": failed(NOW - 1)},
        live=LiveReplicas(2, {"r1": DEAD}),
        unreachable="Ray's GCS has not answered for 7.0 s",
    )

    assert judged.state == "up"
    assert (judged.replicas, judged.target_replicas) == (2, 4)
    assert judged.replicas_out == {"r1": DEAD}
    assert judged.reason is None


def test_a_model_is_up_before_ray_has_ever_answered() -> None:
    judged = judge(None, live=LiveReplicas(2), unreachable="Ray Serve's controller has not answered yet")

    assert (judged.state, judged.replicas, judged.target_replicas) == ("up", 2, 2)


@pytest.mark.parametrize("unreachable", ["", "Ray's GCS has not answered for 7.0 s"])
def test_a_model_whose_replicas_are_all_out_is_not_up_though_ray_says_they_run(unreachable: str) -> None:
    judged = judge(
        deployment(DeploymentStatus.HEALTHY, RUNNING=2),
        {"r1": phase("ready", NOW - 900)},
        live=LiveReplicas(0, {"r1": DEAD, "r2": "no heartbeat for 1.2 s"}),
        min_replicas=0,
        unreachable=unreachable,
    )

    assert (judged.state, judged.ready, judged.replicas) == ("loading", False, 0)
    assert judged.phase == "waiting_for_replacement"
    assert judged.reason == f"no replica can take requests: r1: {DEAD}; r2: no heartbeat for 1.2 s"


def test_beside_replicas_that_are_out_the_one_that_starts_tells_its_phase() -> None:
    judged = judge(
        deployment(STARTING=1),
        {"r1": phase("ready", NOW - 1), "r2": phase("imports", NOW - 3)},
        live=LiveReplicas(0, {"r1": DEAD}),
    )

    assert (judged.phase, judged.phase_seconds) == ("imports", 3.0)
    assert judged.reason == f"no replica can take requests: r1: {DEAD}"


def test_a_replica_that_ray_calls_running_and_this_process_has_not_been_told_of_is_not_up() -> None:
    judged = judge(deployment(DeploymentStatus.HEALTHY, RUNNING=1), {"r1": phase("ready", NOW - 0.5)})

    assert (judged.state, judged.phase, judged.phase_seconds) == ("loading", "ready", 0.5)


def test_a_model_at_zero_is_not_ready_while_nobody_could_wake_it() -> None:
    why = "Ray Serve's controller has not answered for 7.0 s"

    judged = judge(deployment(DeploymentStatus.HEALTHY), min_replicas=0, unreachable=why)

    assert (judged.state, judged.phase, judged.reason) == ("loading", "waiting_for_ray", why)


def test_a_replica_that_loads_while_ray_does_not_answer_tells_its_phase_and_why_it_may_stay() -> None:
    why = "Ray's GCS has not answered for 7.0 s"

    judged = judge(deployment(STARTING=1), {"r1": phase("warm_up", NOW - 9)}, unreachable=why)

    assert (judged.phase, judged.phase_seconds, judged.reason) == ("warm_up", 9.0, why)


def test_no_replica_and_none_wanted_is_idle() -> None:
    judged = judge(deployment(DeploymentStatus.HEALTHY), min_replicas=0)

    assert judged.state == "idle_at_zero"
    assert (judged.replicas, judged.target_replicas) == (0, 0)


def test_the_last_replica_on_its_way_out_is_idle_already() -> None:
    draining = {"r1": phase("draining", NOW - 9)}

    assert judge(deployment(STOPPING=1), draining, min_replicas=0).state == "idle_at_zero"


def test_no_replica_where_there_must_be_one_is_not_idle() -> None:
    assert judge(deployment(DeploymentStatus.HEALTHY)).state == "loading"


def test_a_model_that_wakes_from_zero_is_loading() -> None:
    judged = judge(deployment(DeploymentStatus.UPSCALING, STARTING=2), min_replicas=0)

    assert (judged.state, judged.target_replicas) == ("loading", 2)


@pytest.mark.parametrize("scaling", [PLACED, None], ids=["with a policy", "without a policy"])
def test_a_replica_that_has_said_nothing_yet_waits_for_a_node(scaling: dict[str, Any] | None) -> None:
    judged = judge(deployment(message="waiting for 1 GPU", STARTING=1), scaling=scaling)

    assert (judged.state, judged.phase, judged.phase_seconds) == ("loading", "waiting_for_a_node", None)
    assert judged.reason == "waiting for 1 GPU"
    assert judged.startup_seconds == {}


def test_a_loading_model_tells_its_newest_phase_and_for_how_long_it_has_lasted() -> None:
    phases = {"r1": phase("weights_and_kv_cache", NOW - 3.25), "r2": phase("imports", NOW - 9)}

    judged = judge(deployment(STARTING=2), phases)

    assert (judged.state, judged.phase, judged.phase_seconds) == ("loading", "weights_and_kv_cache", 3.25)
    assert judged.startup_seconds == {"imports": 7.123}


@pytest.mark.parametrize("status", [DeploymentStatus.UNHEALTHY, DeploymentStatus.DEPLOY_FAILED])
def test_a_failed_deployment_gives_the_phase_and_the_error_it_failed_with(status: DeploymentStatus) -> None:
    judged = judge(
        deployment(status, "The deployment failed to start 3 times in a row.", STARTING=1),
        {"r1": failed(NOW - 5), "r0": phase("imports", NOW - 50)},
    )

    assert judged.state == "failed"
    assert judged.reason == "weights_and_kv_cache: OSError: no such model"


@pytest.mark.parametrize("status", [DeploymentStatus.UNHEALTHY, DeploymentStatus.DEPLOY_FAILED])
def test_a_failed_deployment_without_a_phase_gives_rays_reason(status: DeploymentStatus) -> None:
    judged = judge(deployment(status, "no such image"))

    assert (judged.state, judged.reason) == ("failed", "no such image")


def test_a_failure_nothing_is_started_after_is_a_failure() -> None:
    assert judge(deployment(), {"r1": failed(NOW - 5)}).state == "failed"


def test_a_failure_ray_tries_again_after_is_still_loading_and_says_what_went_wrong() -> None:
    judged = judge(deployment(STARTING=1), {"r1": failed(NOW - 5)})

    assert (judged.state, judged.phase) == ("loading", "failed")
    assert judged.reason == "weights_and_kv_cache: OSError: no such model"


def test_an_older_failure_is_history_once_a_newer_replica_is_under_way() -> None:
    phases = {"r1": failed(NOW - 50), "r2": phase("imports", NOW - 2)}

    judged = judge(deployment(STARTING=1), phases)

    assert (judged.state, judged.phase, judged.reason) == ("loading", "imports", None)


def test_a_replica_that_is_ready_and_not_in_service_yet_waits_for_no_node() -> None:
    judged = judge(deployment(STARTING=1), {"r1": phase("ready", NOW - 0.5)})

    assert (judged.state, judged.phase, judged.phase_seconds) == ("loading", "ready", 0.5)


@pytest.mark.parametrize("status", [DeploymentStatus.UPDATING, DeploymentStatus.UPSCALING])
def test_a_model_that_may_rest_at_zero_and_cannot_start_is_no_idle_one(status: DeploymentStatus) -> None:
    judged = judge(deployment(status), {"r1": failed(NOW - 5)}, min_replicas=0)

    assert (judged.state, judged.reason) == ("failed", "weights_and_kv_cache: OSError: no such model")


def test_a_failure_long_made_up_for_does_not_keep_an_idle_model_from_being_ready() -> None:
    """The replica that failed was killed, and what it wrote stays; the one after it served, and left."""
    judged = judge(deployment(DeploymentStatus.HEALTHY), {"r1": failed(NOW - 5000)}, min_replicas=0)

    assert (judged.state, judged.ready) == ("idle_at_zero", True)


def test_a_replica_on_its_way_out_says_nothing_of_the_one_on_its_way_in() -> None:
    phases = {"r1": phase("draining", NOW - 1), "r2": phase("imports", NOW - 4)}

    judged = judge(deployment(STARTING=1, STOPPING=1), phases)

    assert (judged.phase, judged.phase_seconds) == ("imports", 4.0)


def test_no_replica_and_no_policy_that_could_ask_for_one_is_told_with_what_may_be_missing() -> None:
    judged = judge(deployment(DeploymentStatus.HEALTHY), scaling=None)

    assert (judged.state, judged.phase) == ("loading", "waiting_for_the_policy")
    assert judged.reason is not None
    assert "lacks autoscaling_policy" in judged.reason


def test_a_replica_the_cluster_has_no_place_for_is_told_with_the_reason_and_since_when() -> None:
    pending = {"pending": 2, "pending_s": 31, "reason": "no node has 1 GPU free (0 of 8 in the cluster)"}

    judged = judge(deployment(STARTING=2), scaling=pending)

    assert (judged.state, judged.phase, judged.phase_seconds) == ("loading", "pending_capacity", 31)
    assert judged.reason == "no node has 1 GPU free (0 of 8 in the cluster)"


def test_a_replica_without_a_place_does_not_hide_one_that_loads() -> None:
    pending = {"pending": 1, "pending_s": 31, "reason": "no node has 1 GPU free"}

    judged = judge(deployment(STARTING=2), {"r1": phase("imports", NOW - 2)}, scaling=pending)

    assert (judged.phase, judged.reason) == ("imports", None)
