"""What the ingress knows of its application: readiness, and the metrics of every replica.

Both are answered within a second. What this process knows by itself comes first; the rest is the last that
Ray Serve's controller and Ray's GCS have said, with its age.
"""

import asyncio
import time
from collections.abc import Sequence

from serve_app.api.health import ControlPlane, ModelReadiness, Readiness
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.serve_status import deployment_statuses
from serve_app.ingress.readiness import Known, LiveReplicas, judge
from serve_app.ingress.replica_set import replica_set
from serve_app.ingress.stored_state import StoredState
from serve_app.settings.live_knobs import LiveKnobs
from serve_app.settings.tree import ModelSettings
from serve_app.telemetry.exposition import NodeMetrics

_WAIT_S = 0.8
"""How long to wait for Ray, which answers within 50 ms unless overloaded: we answer in less than 1 s."""
_FRESH_S = 0.5
_UNREACHABLE_S = 2.0
"""The controller or the GCS is reported as unreachable if a question this old has no answer."""


class ServeObserver:
    """Observes the models of one application from inside a replica of it.

    Args:
        app: The Serve application.
        models: Its models.
        live: The knobs in force.
        stored: What its replicas and its policy have stored.
        zygote: Whether nodes keep zygotes.
    """

    def __init__(
        self,
        app: str,
        models: Sequence[ModelSettings],
        live: LiveKnobs,
        stored: BoundedCall[StoredState],
        zygote: bool = True,
    ) -> None:
        self._models = models
        self._live = live
        self._stored = stored
        self._zygote = zygote
        self._serve = BoundedCall(
            f"Ray Serve's status of {app}",
            lambda: deployment_statuses(app, [model.deployment_name for model in models]),
            _FRESH_S,
            time.monotonic,
        )
        self._replicas: dict[str, LiveReplicas] = {}
        self._metrics = NodeMetrics()

    async def readiness(self) -> Readiness:
        """Every model's readiness, within a second."""
        replicas = {model.name: live_replicas(model.deployment_name) for model in self._models}
        # What Ray said before a replica came or went here says nothing of the state it left: a model that
        # has just gone to zero would be taken for one that has lost its replica.
        since = time.monotonic() if replicas != self._replicas else None
        self._replicas = replicas
        await asyncio.gather(self._serve.get(_WAIT_S, since), self._stored.get(_WAIT_S, since))
        control = ControlPlane(self._serve.age_s(), self._stored.age_s(), _UNREACHABLE_S)
        now = time.monotonic()
        models = [self._judge(model, control, now) for model in self._models]
        return Readiness(models, control, self._zygote)

    def _judge(self, model: ModelSettings, control: ControlPlane, now: float) -> ModelReadiness:
        name = model.deployment_name
        deployments = self._serve.last.value if self._serve.last is not None else {}
        stored = self._stored.last.value if self._stored.last is not None else StoredState()
        known = Known(
            deployments.get(name),
            stored.phases.get(name, {}),
            stored.of(name, now),
            control.reason,
        )
        # The replicas as they are now, after the wait.
        return judge(model, self._live.of(model.name).min_replicas, live_replicas(name), known, now)

    async def metrics(self) -> bytes:
        """The `llm_*` series of every replica on every node, within a second."""
        return await self._metrics.exposition()


def live_replicas(deployment: str) -> LiveReplicas:
    """The replicas of an engine deployment, as this process finds them."""
    replicas = replica_set(deployment)
    out = {replica.replica_id: replica.trouble for replica in replicas.listed() if replica.trouble}
    return LiveReplicas(len(replicas), out)
