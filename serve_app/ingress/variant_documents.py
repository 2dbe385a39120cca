"""The documents and Ray's status of the variants of a model, merged under the name of the model's engines.

Readiness, cold starts and the page look at models. For a model without variants nothing changes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from ray.serve.schema import DeploymentStatusOverview

from serve_app.cluster.serve_status import ServeStatus
from serve_app.ingress.cold_start_progress import StoredState

Deployments = Mapping[str, Collection[str]]
"""The engine deployments of each model, by the model's `deployment_name`."""
_FAILED = ("DEPLOY_FAILED", "UNHEALTHY")


def stored_by_model(read: Callable[[], StoredState], deployments: Deployments) -> Callable[[], StoredState]:
    """Return a function that reads the stored state, with the phases of all variants of a model."""

    def read_merged() -> StoredState:
        state = read()
        phases = {
            model: {replica: found for name in names for replica, found in state.phases.get(name, {}).items()}
            for model, names in deployments.items()
        }
        return replace(state, phases=phases)

    return read_merged


def status_by_model(read: Callable[[], ServeStatus], deployments: Deployments) -> Callable[[], ServeStatus]:
    """Return a function that reads Ray Serve's status, with one status for all variants of a model."""

    def read_merged() -> ServeStatus:
        status = read()
        merged = {}
        for model, names in deployments.items():
            known = [status.deployments[name] for name in names if name in status.deployments]
            if known:
                merged[model] = _merge(known)
        return replace(status, deployments=merged)

    return read_merged


def _merge(known: Collection[DeploymentStatusOverview]) -> DeploymentStatusOverview:
    """Return the status of the best deployment, with the replicas of all.

    A model has failed only if each of its variants has: the policy uses the others.
    """
    best = min(known, key=lambda each: each.status.value in _FAILED)
    if len(known) == 1:
        return best
    states = sum((Counter(each.replica_states) for each in known), Counter())
    return replace(best, replica_states=dict(states))
