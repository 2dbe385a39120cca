from __future__ import annotations

from typing import Any

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from serve_app.autoscaling.ongoing import ONGOING_REQUESTS, desired_replicas, replicas_for

DEPLOYMENT = DeploymentID("Engine-tide", "tideserve")


@pytest.mark.parametrize(
    ("ongoing", "target", "replicas"),
    [(0, 16, 0), (0.1, 16, 1), (16, 16, 1), (16.1, 16, 2), (160, 16, 10), (3, 0.5, 6), (-1, 16, 0)],
)
def test_one_replica_for_every_target_s_worth_of_requests_begun(
    ongoing: float, target: float, replicas: int
) -> None:
    assert replicas_for(ongoing, target) == replicas


def context(
    reported: dict[str, dict[Any, float]] | None,
    queued: float,
    handled: float = 0.0,
    running: int = 2,
    target: float = 10.0,
) -> AutoscalingContext:
    """Ray's own context, so that what Ray renames is noticed."""
    return AutoscalingContext(
        deployment_id=DEPLOYMENT,
        deployment_name=DEPLOYMENT.name,
        app_name=DEPLOYMENT.app_name,
        current_num_replicas=running,
        target_num_replicas=running,
        running_replicas=[replica(n) for n in range(running)],
        total_num_requests=handled + queued,
        total_queued_requests=queued,
        aggregated_metrics=reported,
        raw_metrics=None,
        capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=8,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=1_700_000_000.0,
        config=AutoscalingConfig(min_replicas=0, max_replicas=8, target_ongoing_requests=target),
    )


def replica(number: int) -> ReplicaID:
    return ReplicaID(f"r{number}", DEPLOYMENT)


def test_what_the_replicas_report_and_what_queues_for_one_add_up() -> None:
    reported = {ONGOING_REQUESTS: {replica(0): 15.0, replica(1): 6.0}}

    assert desired_replicas(context(reported, queued=9.0)) == (3, {})
    assert desired_replicas(context(reported, queued=9.5)) == (4, {})


def test_at_zero_replicas_the_queue_alone_decides() -> None:
    assert desired_replicas(context({}, queued=35.0, running=0)) == (4, {})


@pytest.mark.parametrize("reported", [None, {}, {ONGOING_REQUESTS: {}}, {"other": {replica(0): 50.0}}])
def test_without_requests_there_need_be_no_replica(reported: dict[str, dict[Any, float]] | None) -> None:
    assert desired_replicas(context(reported, queued=0.0)) == (0, {})


def test_the_target_is_the_configurations() -> None:
    reported = {ONGOING_REQUESTS: {replica(0): 20.0}}

    assert desired_replicas(context(reported, queued=0.0, target=4.0)) == (5, {})


def test_what_came_through_rays_handles_counts_where_nothing_is_relayed() -> None:
    assert desired_replicas(context({}, queued=5.0, handled=30.0)) == (4, {})


def test_a_request_both_ray_and_a_replica_know_of_counts_once() -> None:
    reported = {ONGOING_REQUESTS: {replica(0): 20.0}}

    assert desired_replicas(context(reported, queued=0.0, handled=20.0)) == (2, {})
