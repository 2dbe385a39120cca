import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError
from ray.serve._private.common import ReplicaState
from ray.serve._private.controller import ServeController
from ray.serve.schema import DeploymentStatus, DeploymentStatusTrigger

from serve_app.cluster import serve_status
from serve_app.cluster.serve_status import deployment_statuses
from serve_app.ingress.readiness import Known, LiveReplicas, judge
from serve_app.settings import ModelSettings

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

    controller = SimpleNamespace(get_deployment_details=SimpleNamespace(remote=remote))
    client = SimpleNamespace(_controller=controller)
    monkeypatch.setattr(serve_status, "_get_global_client", lambda **_: client)
    monkeypatch.setattr(serve_status, "ray", SimpleNamespace(get=get))
    return questions


def test_known_deployments_have_their_replicas_by_state(
    asked: list[tuple[str, ...]],
) -> None:
    found = deployment_statuses("shop", ["Engine-tide", "Engine-new"])

    assert asked == [("shop", "Engine-tide"), ("shop", "Engine-new")]
    assert set(found) == {"Engine-tide"}
    assert found["Engine-tide"].replica_states == {"RUNNING": 1, "STARTING": 2}
    judged = judge(ModelSettings(name="tide"), 1, LiveReplicas(1), Known(found["Engine-tide"]), 0.0)
    assert (judged.state, judged.target_replicas) == ("up", 3)


def test_without_ray_serve_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_status, "_get_global_client", lambda **_: None)

    assert deployment_statuses("shop", ["Engine-tide"]) == {}


def test_the_controller_has_the_method_with_its_parameters() -> None:
    """Ray keeps it for its own tests."""
    method = ServeController.get_deployment_details  # type: ignore[attr-defined]

    assert list(inspect.signature(method).parameters) == ["self", "app_name", "deployment_name"]
