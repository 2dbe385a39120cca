"""Ray Serve's status of an application, by calls that its controller answers from memory.

`ray.serve.status()` makes the controller read the configuration of every application from the GCS, in its
event loop and without a time limit: while the GCS does not answer, it would hold up every deployment.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import ray
from ray.serve._private.application_state import StatusOverview
from ray.serve.context import _get_global_client
from ray.serve.generated.serve_pb2 import StatusOverview as StatusOverviewProto
from ray.serve.schema import DeploymentStatusOverview

_FAILED = ("DEPLOY_FAILED", "UNHEALTHY")
_TRACEBACK_LINES = 3
_LONGEST_ERROR = 500
"""Characters. vLLM's errors may contain whole configurations."""


@dataclass(frozen=True, slots=True)
class ServeStatus:
    """What Ray Serve says of an application."""

    deployments: Mapping[str, DeploymentStatusOverview] = field(default_factory=dict)
    """The status of each engine deployment that Ray Serve knows."""
    failed_rollout: str = ""
    """Ray Serve's message of a rollout that failed before or beside the engine deployments."""

    def starts_nothing(self, deployment: str) -> bool:
        """Whether Ray Serve starts no replica of an engine deployment until another rollout.

        If `build` raises, Ray Serve knows no deployments. Replicas that it has started before go on.
        """
        return bool(self.failed_rollout) and deployment not in self.deployments

    def by_model(self, models: Mapping[str, Collection[str]]) -> Self:
        """Return this status with one status for all engine deployments of each model.

        A model has failed only if each of its variants has, because the policy uses the others.
        """
        merged = {}
        for model, names in models.items():
            known = [self.deployments[name] for name in names if name in self.deployments]
            if known:
                best = min(known, key=lambda each: each.status.value in _FAILED)
                states = sum((Counter(each.replica_states) for each in known), Counter())
                merged[model] = best if len(known) == 1 else replace(best, replica_states=dict(states))
        return replace(self, deployments=merged)


def serve_status(app: str, names: Collection[str]) -> ServeStatus:
    """Return the status of `app` and of its engine deployments `names`, when the controller answers."""
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return ServeStatus()
    whole = client._controller.get_serve_status.remote(app)
    asked = {name: client._controller.get_deployment_details.remote(app, name) for name in names}
    found = {}
    for name, answer in asked.items():
        try:
            details = ray.get(answer)
        except KeyError:  # not deployed yet; Ray raises what the controller raised
            continue
        found[name] = DeploymentStatusOverview(
            status=details.status,
            status_trigger=details.status_trigger,
            replica_states=dict(Counter(replica.state for replica in details.replicas)),
            message=details.message,
        )
    status = StatusOverview.from_proto(StatusOverviewProto.FromString(ray.get(whole)))
    return ServeStatus(found, failed_rollout(status, names))


def failed_rollout(status: StatusOverview, engines: Collection[str]) -> str:
    """Return why the last rollout failed; "" if it did not, or if only `engines` have failed."""
    if status.app_status.status != "DEPLOY_FAILED":
        return ""
    failed = {each.name: each.message for each in status.deployment_statuses if each.status in _FAILED}
    others = [message for name, message in failed.items() if name not in engines]
    return "\n".join(others) if failed else status.app_status.message


def summary(message: str) -> str:
    """Return a message of Ray Serve with the first sentence and the error, without the traceback."""
    lines = message.strip().splitlines()
    if len(lines) < _TRACEBACK_LINES:
        return message
    what, error = lines[0].partition(". ")[0].rstrip(":"), lines[-1].strip().removeprefix("- ")
    return f"{what}: {error:.{_LONGEST_ERROR}}"
