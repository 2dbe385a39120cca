from __future__ import annotations

from typing import Any

import pytest
from ray.serve._private.common import ReplicaState
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview, DeploymentStatusTrigger

from serve_app.observer import judge
from serve_app.settings import ModelSettings, ScalingSettings

NOW = 1_700_000_100.0
FIXED = ModelSettings(name="tide")
TO_ZERO = ModelSettings(name="tide", scaling=ScalingSettings(min_replicas=0, max_replicas=4))


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
    judged = judge(FIXED, None, {}, NOW)

    assert (judged.model, judged.state, judged.phase) == ("tide", "loading", "deploying")


@pytest.mark.parametrize("status", list(DeploymentStatus))
def test_a_model_with_a_running_replica_is_up_whatever_else_goes_on(status: DeploymentStatus) -> None:
    judged = judge(
        FIXED,
        deployment(status, "a replica failed", RUNNING=2, STARTING=1, STOPPING=3),
        {"r3": failed(NOW - 1)},
        NOW,
    )

    assert judged.state == "up"
    assert (judged.replicas, judged.target_replicas) == (2, 3)
    assert judged.reason is None


def test_no_replica_and_none_wanted_is_idle() -> None:
    judged = judge(TO_ZERO, deployment(DeploymentStatus.HEALTHY), {}, NOW)

    assert judged.state == "idle_at_zero"
    assert (judged.replicas, judged.target_replicas) == (0, 0)


def test_the_last_replica_on_its_way_out_is_idle_already() -> None:
    assert (
        judge(TO_ZERO, deployment(STOPPING=1), {"r1": phase("ready", NOW - 900)}, NOW).state == "idle_at_zero"
    )


def test_no_replica_where_there_must_be_one_is_not_idle() -> None:
    assert judge(FIXED, deployment(DeploymentStatus.HEALTHY), {}, NOW).state == "loading"


def test_a_model_that_wakes_from_zero_is_loading() -> None:
    judged = judge(TO_ZERO, deployment(DeploymentStatus.UPSCALING, STARTING=2), {}, NOW)

    assert (judged.state, judged.target_replicas) == ("loading", 2)


def test_a_replica_that_has_said_nothing_yet_waits_for_a_node() -> None:
    judged = judge(FIXED, deployment(message="waiting for 1 GPU", STARTING=1), {}, NOW)

    assert (judged.state, judged.phase, judged.phase_seconds) == ("loading", "waiting_for_a_node", None)
    assert judged.reason == "waiting for 1 GPU"
    assert judged.startup_seconds == {}


def test_a_loading_model_tells_its_newest_phase_and_for_how_long_it_has_lasted() -> None:
    phases = {"r1": phase("weights_and_kv_cache", NOW - 3.25), "r2": phase("imports", NOW - 9)}

    judged = judge(FIXED, deployment(STARTING=2), phases, NOW)

    assert (judged.state, judged.phase, judged.phase_seconds) == ("loading", "weights_and_kv_cache", 3.25)
    assert judged.startup_seconds == {"imports": 7.123}


@pytest.mark.parametrize("status", [DeploymentStatus.UNHEALTHY, DeploymentStatus.DEPLOY_FAILED])
def test_a_failed_deployment_gives_the_phase_and_the_error_it_failed_with(status: DeploymentStatus) -> None:
    judged = judge(
        FIXED,
        deployment(status, "The deployment failed to start 3 times in a row.", STARTING=1),
        {"r1": failed(NOW - 5), "r0": phase("imports", NOW - 50)},
        NOW,
    )

    assert judged.state == "failed"
    assert judged.reason == "weights_and_kv_cache: OSError: no such model"


@pytest.mark.parametrize("status", [DeploymentStatus.UNHEALTHY, DeploymentStatus.DEPLOY_FAILED])
def test_a_failed_deployment_without_a_phase_gives_rays_reason(status: DeploymentStatus) -> None:
    judged = judge(FIXED, deployment(status, "no such image"), {}, NOW)

    assert (judged.state, judged.reason) == ("failed", "no such image")


def test_a_failure_nothing_is_started_after_is_a_failure() -> None:
    assert judge(FIXED, deployment(), {"r1": failed(NOW - 5)}, NOW).state == "failed"


def test_a_failure_ray_tries_again_after_is_still_loading_and_says_what_went_wrong() -> None:
    judged = judge(FIXED, deployment(STARTING=1), {"r1": failed(NOW - 5)}, NOW)

    assert (judged.state, judged.phase) == ("loading", "failed")
    assert judged.reason == "weights_and_kv_cache: OSError: no such model"


def test_an_older_failure_is_history_once_a_newer_replica_is_under_way() -> None:
    phases = {"r1": failed(NOW - 50), "r2": phase("imports", NOW - 2)}

    judged = judge(FIXED, deployment(STARTING=1), phases, NOW)

    assert (judged.state, judged.phase, judged.reason) == ("loading", "imports", None)


def test_a_ready_replica_that_was_killed_says_nothing_of_the_one_that_replaces_it() -> None:
    judged = judge(FIXED, deployment(STARTING=1), {"r1": phase("ready", NOW - 900)}, NOW)

    assert (judged.state, judged.phase, judged.phase_seconds) == ("loading", "waiting_for_a_node", None)
