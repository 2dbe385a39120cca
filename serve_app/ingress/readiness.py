"""Answer `/ready` and `/metrics`: whether each model can be served, and the metrics of all replicas.

Both are answered within a second. The knowledge of this process counts first. The rest comes from the last
answers of Ray Serve's controller and Ray's GCS, which are reported with their age.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from serve_app.api.health import ControlPlane, ModelReadiness, Readiness
from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.serve_status import ServeStatus, summary
from serve_app.ingress.cold_start_progress import StoredState
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.settings.knobs import LiveKnobs
from serve_app.settings.tree import ModelSettings
from serve_app.telemetry.exposition import NodeMetrics
from serve_app.wire.phases import DRAINING, FAILED

SERVE_LOG = "session_latest/logs/serve/controller_*.log in Ray's folder"
GIVEN_UP = "Ray Serve starts no replica before a deploy that changes a setting of this model"
"""Added to the reason of a failed deployment. A repaired file or an equal deploy makes Ray try nothing."""
_UNREACHABLE_S = 2.0
"""The controller or the GCS is reported as unreachable if a question this old has no answer."""
_NO_POLICY = (
    "no autoscaling policy has reported yet; if none does, the application's configuration lacks "
    "autoscaling_policy"
)


@dataclass(slots=True, eq=False)
class ServeObserver:
    """Observes the models of one application from inside a replica of it."""

    models: Sequence[ModelSettings]
    replicas: Mapping[str, ReplicaSet]
    """The replicas of each engine deployment."""
    live: LiveKnobs
    serve: BoundedCall[ServeStatus]
    stored: BoundedCall[StoredState]
    """The documents that the engine replicas and the policy have stored."""
    zygote: bool = True
    """Whether nodes keep zygotes."""
    clock: Callable[[], float] = time.monotonic
    """The clock of `serve` and `stored`."""
    wait_s: float = 0.8
    """How long to wait for Ray, so that clients have an answer within 1 s. Ray needs about 50 ms."""
    _before: dict[str, LiveReplicas] = field(default_factory=dict, init=False)
    _metrics: NodeMetrics = field(default_factory=NodeMetrics, init=False)

    async def readiness(self) -> Readiness:
        """Return every model's readiness, within a second."""
        replicas = {name: LiveReplicas.of(known) for name, known in self.replicas.items()}
        # After a replica came or went, Ray's older answers are out of date: a model that was just scaled to
        # zero would look as if it had lost its replica.
        since = self.clock() if replicas != self._before else None
        self._before = replicas
        await asyncio.gather(self.serve.get(self.wait_s, since), self.stored.get(self.wait_s, since))
        control = ControlPlane(self.serve.age_s(), self.stored.age_s(), _UNREACHABLE_S)
        serve = self.serve.last.value if self.serve.last is not None else ServeStatus()
        stored = self.stored.last.value if self.stored.last is not None else StoredState()
        now, models = self.clock(), []
        for model in self.models:
            name = model.deployment_name
            known = Known(
                serve.deployments.get(name),
                stored.phases.get(name, {}),
                stored.of(name, now),
                control.reason,
                serve.failed_rollout,
            )
            # The wait may have changed the replicas.
            live = LiveReplicas.of(self.replicas[name])
            models.append(judge(model, self.live.of(model.name).min_replicas, live, known, now))
        return Readiness(models, control, self.zygote)

    async def metrics(self) -> bytes:
        """Return the `llm_*` series of every replica on every node, within a second."""
        return await self._metrics.exposition()


@dataclass(frozen=True, slots=True)
class LiveReplicas:
    """The replicas of one model that Ray lists, as this process sees them."""

    usable: int = 0
    """The number of replicas that get requests."""
    out: Mapping[str, str] = field(default_factory=dict)
    """The trouble of each other replica, by replica."""
    first_runs_left: frozenset[str] = frozenset()
    """The kinds of requests that some replica has not run yet."""

    @classmethod
    def of(cls, replicas: ReplicaSet) -> LiveReplicas:
        out = {replica.replica_id: replica.trouble for replica in replicas.listed() if replica.trouble}
        left = frozenset(kind for replica in replicas.listed() for kind in replica.first_runs_left)
        return cls(len(replicas), out, left)


@dataclass(frozen=True, slots=True)
class Known:
    """The last answers of Ray, the replicas and the policy about one model."""

    deployment: Any = None
    """Ray Serve's status of the engine deployment; None if Ray Serve has none, or has never answered."""
    phases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Phase documents of the replicas that exist and of those that could not start, by replica."""
    scaling: Mapping[str, Any] | None = None
    """The policy's status of the model; None while there is none."""
    unreachable: str = ""
    """Which part of Ray does not answer, and for how long; "" if all parts answer."""
    failed_rollout: str = ""
    """Ray Serve's message of a rollout that failed before or beside the engine deployments; else ""."""


def judge(
    model: ModelSettings, min_replicas: int, live: LiveReplicas, known: Known, now: float
) -> ModelReadiness:
    """Return the readiness of one model.

    A model with a replica that takes requests is up, even if Ray does not answer.

    Args:
        min_replicas: The knob in force.
        known: The last answers about the model.
        now: Seconds on the clock of the times in the documents.
    """
    states = known.deployment.replica_states if known.deployment is not None else {}
    total = sum(count for state, count in states.items() if state.value != "STOPPING")
    newest = _newest(known.phases, live)
    scaling = known.scaling or {}
    found = ModelReadiness(
        model.name,
        "up",
        replicas=live.usable,
        target_replicas=max(total, live.usable),
        startup_seconds={k: round(v, 3) for k, v in newest["durations_s"].items()} if newest else {},
        replicas_out=dict(live.out),
        first_runs_left=sorted(live.first_runs_left),
        warm_node=scaling.get("warm_node"),
        warm_node_start_s=_rounded(scaling.get("warm_node_start_s")),
        cold_node_start_s=_rounded(scaling.get("cold_node_start_s")),
        version_of=model.version_of,
    )
    if live.usable:  # perhaps replicas of the former version, after an update that failed
        return replace(found, reason=_ray_failure(known, newest) or _rollout_failure(known))
    starting = None if newest is None or newest["phase"] in (FAILED, "ready") else newest
    if live.out:  # known without Ray
        why = "; ".join(f"{replica}: {trouble}" for replica, trouble in live.out.items())
        return _loading(
            found, starting, now, "waiting_for_replacement", f"no replica can take requests: {why}"
        )
    if known.unreachable:
        # A model at zero is not idle: without Ray, no replica starts for a request.
        return _loading(found, starting, now, "waiting_for_ray", known.unreachable)
    if known.deployment is None:
        if known.failed_rollout:
            return replace(found, state="failed", reason=_rollout_failure(known))
        return replace(found, state="loading", phase="deploying")
    failure = _failure(known, newest, total, min_replicas)
    if failure is not None:
        return replace(found, state="failed", reason=failure or None)
    if not total and min_replicas == 0:
        return replace(found, state="idle_at_zero", reason=_rollout_failure(known))
    message = known.deployment.message or None
    if newest is not None:
        return _loading(found, newest, now, "", _why_failed(newest) if newest["phase"] == FAILED else message)
    if known.scaling is None and not total:
        return _loading(found, None, now, "waiting_for_the_policy", message or _NO_POLICY)
    if scaling.get("pending"):
        pending = _loading(found, None, now, "pending_capacity", message or scaling["reason"] or None)
        return replace(pending, phase_seconds=scaling["pending_s"])
    return _loading(found, None, now, "waiting_for_a_node", message)


def _loading(
    found: ModelReadiness,
    starting: Mapping[str, Any] | None,
    now: float,
    otherwise: str,
    reason: str | None,
) -> ModelReadiness:
    """Return `found` as loading, in the phase of the replica that starts, or in `otherwise`."""
    if starting is None:
        return replace(found, state="loading", phase=otherwise, reason=reason)
    seconds = round(now - float(starting["since"]), 3)
    return replace(found, state="loading", phase=starting["phase"], phase_seconds=seconds, reason=reason)


def _newest(phases: Mapping[str, Mapping[str, Any]], live: LiveReplicas) -> Mapping[str, Any] | None:
    """Return the newest phase document of all replicas that neither drain nor are out."""
    candidates = [
        document
        for replica, document in phases.items()
        if document["phase"] != DRAINING and replica not in live.out
    ]
    return max(candidates, key=lambda document: float(document["since"]), default=None)


def _failure(known: Known, newest: Mapping[str, Any] | None, total: int, min_replicas: int) -> str | None:
    """Return why the model has failed for good; None if it has not."""
    # The document of a replica that failed to start is kept. It does not count if the model is healthy by Ray
    # and at zero, because other replicas have run since.
    others_ran = min_replicas == 0 and _status(known) == "HEALTHY"
    if newest is not None and newest["phase"] == FAILED and not total and not others_ran:
        return _ray_failure(known, newest) or _why_failed(newest)
    return _ray_failure(known, newest)


def _ray_failure(known: Known, newest: Mapping[str, Any] | None) -> str | None:
    """Return why Ray Serve calls the deployment failed; None if Ray Serve does not."""
    status = _status(known)
    if status not in ("UNHEALTHY", "DEPLOY_FAILED"):
        return None
    failed = newest is not None and newest["phase"] == FAILED
    why = _why_failed(newest) if newest and failed else _shorten(str(known.deployment.message))
    return f"{why}; {GIVEN_UP}" if status == "DEPLOY_FAILED" else why


def _rollout_failure(known: Known) -> str | None:
    """Return why the last rollout failed before or beside the model; None if it did not."""
    return f"the last rollout failed: {_shorten(known.failed_rollout)}" if known.failed_rollout else None


def _status(known: Known) -> str:
    status = getattr(known.deployment, "status", "")
    return str(getattr(status, "value", status))


def _shorten(message: str) -> str:
    """Return the summary of a message of Ray Serve, with the log that has the traceback."""
    short = summary(message)
    return message if short == message else f"{short} (traceback: {SERVE_LOG})"


def _why_failed(document: Mapping[str, Any]) -> str:
    return f"{document['during']}: {document['reason']}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
