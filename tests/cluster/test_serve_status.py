import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError
from ray.serve._private.application_state import ApplicationStatusInfo, StatusOverview
from ray.serve._private.common import DeploymentStatusInfo, ReplicaState
from ray.serve._private.controller import ServeController
from ray.serve.schema import ApplicationStatus, DeploymentStatus, DeploymentStatusTrigger

from serve_app.cluster import serve_status as module
from serve_app.cluster.serve_status import ServeStatus, failed_rollout
from serve_app.ingress.readiness import Known, LiveReplicas, judge
from serve_app.settings.tree import ModelSettings

DETAILS = SimpleNamespace(
    status=DeploymentStatus.UPSCALING,
    status_trigger=DeploymentStatusTrigger.AUTOSCALING,
    message="",
    replicas=[
        SimpleNamespace(state=state)
        for state in (ReplicaState.RUNNING, ReplicaState.STARTING, ReplicaState.STARTING)
    ],
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What the controller of a fake Serve was asked; it knows one deployment."""
    questions: list[tuple[str, ...]] = []

    def remote(app: str, name: str) -> Any:
        questions.append((app, name))
        if name == "Engine-tide":
            return DETAILS
        return RayTaskError("get_deployment_details", "", KeyError(name)).as_instanceof_cause()

    def get(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    whole = StatusOverview(ApplicationStatusInfo(ApplicationStatus.RUNNING)).to_proto().SerializeToString()
    controller = SimpleNamespace(
        get_deployment_details=SimpleNamespace(remote=remote),
        get_serve_status=SimpleNamespace(remote=lambda app: whole),
    )
    client = SimpleNamespace(_controller=controller)
    monkeypatch.setattr(module, "_get_global_client", lambda **_: client)
    monkeypatch.setattr(module, "ray", SimpleNamespace(get=get))
    return questions


def test_known_deployments_have_their_replicas_by_state(
    asked: list[tuple[str, ...]],
) -> None:
    status = module.serve_status("shop", ["Engine-tide", "Engine-new"])

    found = status.deployments
    assert status.failed_rollout == ""
    assert asked == [("shop", "Engine-tide"), ("shop", "Engine-new")]
    assert set(found) == {"Engine-tide"}
    assert found["Engine-tide"].replica_states == {"RUNNING": 1, "STARTING": 2}
    judged = judge(ModelSettings(name="tide"), 1, LiveReplicas(1), Known(found["Engine-tide"]), 0.0)
    assert (judged.state, judged.target_replicas) == ("up", 3)


FAILED = ApplicationStatus.DEPLOY_FAILED


@pytest.mark.parametrize(
    ("status", "deployments", "reason"),
    [
        (FAILED, {}, "Traceback"),  # `build` raised
        (FAILED, {"Ingress": "no such keys", "Engine-tide": "no such model"}, "no such keys"),
        (FAILED, {"Engine-tide": "no such model"}, ""),  # the engine's own status says why
        (ApplicationStatus.DEPLOYING, {}, ""),
        (ApplicationStatus.RUNNING, {}, ""),
        (ApplicationStatus.UNHEALTHY, {"Ingress": "a health check failed"}, ""),  # no rollout
    ],
)
def test_rollout_that_failed_beside_the_engines_has_its_reason(
    status: ApplicationStatus, deployments: dict[str, str], reason: str
) -> None:
    trigger = DeploymentStatusTrigger.REPLICA_STARTUP_FAILED
    statuses = [
        DeploymentStatusInfo(name, DeploymentStatus.DEPLOY_FAILED, trigger, message)
        for name, message in deployments.items()
    ]
    statuses.append(DeploymentStatusInfo("BatchRunner", DeploymentStatus.HEALTHY, trigger, "well"))
    whole = StatusOverview(ApplicationStatusInfo(status, "Traceback"), "shop", statuses)

    assert failed_rollout(whole, ["Engine-tide"]) == reason


@pytest.mark.parametrize(
    ("status", "starts_nothing"),
    [
        (ServeStatus({}, "Traceback"), True),  # `build` raised
        (ServeStatus({"Engine-tide": DETAILS}, "Ingress: no such keys"), False),
        (ServeStatus(), False),
    ],
)
def test_ray_serve_starts_nothing_after_a_failed_build(status: ServeStatus, starts_nothing: bool) -> None:
    assert status.starts_nothing("Engine-tide") is starts_nothing


def test_without_ray_serve_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_get_global_client", lambda **_: None)

    assert module.serve_status("shop", ["Engine-tide"]) == ServeStatus()


def test_the_controller_has_the_method_with_its_parameters() -> None:
    """Ray keeps it for its own tests."""
    method = ServeController.get_deployment_details  # type: ignore[attr-defined]

    assert list(inspect.signature(method).parameters) == ["self", "app_name", "deployment_name"]
