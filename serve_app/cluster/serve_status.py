"""Ray Serve's status of single deployments, by a call that its controller answers from memory.

`ray.serve.status()` makes the controller read the configuration of every application from the GCS, in its
event loop and without a time limit: while the GCS does not answer, it would hold up every deployment.
"""

from collections import Counter
from collections.abc import Iterable

import ray
from ray.serve.context import _get_global_client
from ray.serve.schema import DeploymentStatusOverview


def deployment_statuses(app: str, names: Iterable[str]) -> dict[str, DeploymentStatusOverview]:
    """Return the status of those deployments of `app` that Ray Serve knows, when the controller answers."""
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return {}
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
    return found
