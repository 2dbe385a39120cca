"""What the ingress knows of the cluster: readiness from Ray Serve, metrics from Ray's agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import ray
from ray import serve

from serve_app.api.health import ModelReadiness
from serve_app.autoscaling.live import LiveKnobs
from serve_app.documents import STATUS, get_document
from serve_app.phases import read_phases
from serve_app.settings.tree import ModelSettings
from serve_app.telemetry.exposition import lost_node, merge_expositions

_STATUS_AGE_S = 0.5
_SCRAPE_TIMEOUT_S = 3.0
_STATUS_LIFE_S = 60.0
_NO_POLICY = (
    "no autoscaling policy has reported yet; if none does, the application's configuration lacks "
    "autoscaling_policy"
)


def judge(
    model: ModelSettings,
    min_replicas: int,
    deployment: Any,
    phases: dict[str, dict[str, Any]],
    scaling: dict[str, Any] | None,
    now: float,
) -> ModelReadiness:
    """Readiness of one model.

    Args:
        model: Its settings.
        min_replicas: The knob as it stands.
        deployment: Ray Serve's status of its engine deployment, or None while Ray has none yet.
        phases: Phase documents of its replicas, by replica.
        scaling: What the autoscaling policy says of it, or None while it has said nothing.
        now: Unix time, in seconds.
    """
    if deployment is None:
        return ModelReadiness(model.name, "loading", phase="deploying")
    states: dict[str, int] = {str(getattr(k, "value", k)): n for k, n in deployment.replica_states.items()}
    running = states.get("RUNNING", 0)
    total = sum(count for state, count in states.items() if state != "STOPPING")
    starting = [phase for phase in phases.values() if phase["phase"] != "draining"]
    newest = max(starting, key=lambda phase: float(phase["since"]), default=None)
    known = ModelReadiness(
        model.name,
        "up",
        replicas=running,
        target_replicas=total,
        startup_seconds={k: round(v, 3) for k, v in newest["durations_s"].items()} if newest else {},
    )
    if running:
        return known
    status = str(getattr(deployment.status, "value", deployment.status))
    reason = deployment.message or None
    if newest is not None and newest["phase"] == "failed":
        reason = f"{newest['during']}: {newest['reason']}"
        # What a replica that failed to start wrote stays behind; it says nothing of a model that had
        # others since, and now rests at zero with Ray content.
        if not total and not (min_replicas == 0 and status == "HEALTHY"):
            return replace(known, state="failed", reason=reason)
    if status in ("UNHEALTHY", "DEPLOY_FAILED"):
        return replace(known, state="failed", reason=reason)
    if not total and min_replicas == 0:
        return replace(known, state="idle_at_zero")
    if newest is not None and newest["phase"] == "ready":
        newest = None  # of a replica that was killed; the one that replaces it has not begun
    phase = newest["phase"] if newest is not None else "waiting_for_a_node"
    since = round(now - float(newest["since"]), 3) if newest is not None else None
    if newest is None and scaling is None and not total:
        phase, reason = "waiting_for_the_policy", reason or _NO_POLICY
    elif newest is None and scaling is not None and scaling["pending"]:
        phase, since, reason = "pending_capacity", scaling["pending_s"], reason or scaling["reason"] or None
    return replace(known, state="loading", phase=phase, phase_seconds=since, reason=reason)


class ServeObserver:
    """Observes the models of one application from inside a replica of it."""

    def __init__(self, app: str, models: Sequence[ModelSettings], live: LiveKnobs) -> None:
        self._app = app
        self._models = models
        self._live = live
        self._seen: list[ModelReadiness] = []
        self._seen_at = float("-inf")
        self._lock = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    async def readiness(self) -> list[ModelReadiness]:
        """Every model's readiness, at most half a second old."""
        async with self._lock:
            if time.monotonic() - self._seen_at > _STATUS_AGE_S:
                self._seen = await asyncio.to_thread(self._look)
                self._seen_at = time.monotonic()
            return self._seen

    def _look(self) -> list[ModelReadiness]:
        application = serve.status().applications.get(self._app)
        told = get_document(STATUS, self._app)
        # A policy writes every ten seconds; what is much older was left by one that is gone.
        status = told["models"] if told is not None and time.time() - told["at"] < _STATUS_LIFE_S else {}
        found = []
        for model in self._models:
            name = model.deployment_name
            deployment = application.deployments.get(name) if application is not None else None
            phases = read_phases(self._app, name)
            least = self._live.of(model.name).min_replicas
            found.append(judge(model, least, deployment, phases, status.get(name), time.time()))
        return found

    async def metrics(self) -> bytes:
        """The `llm_*` series of every replica on every node, through the nodes' metrics agents."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SCRAPE_TIMEOUT_S))
        nodes = await asyncio.to_thread(ray.nodes)
        texts = await asyncio.gather(
            *(
                self._scrape(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics")
                for node in nodes
                if node["Alive"]
            )
        )
        return merge_expositions(texts).encode()

    async def _scrape(self, url: str) -> str:
        assert self._session is not None
        try:
            async with self._session.get(url) as response:
                return await response.text()
        except (TimeoutError, aiohttp.ClientError) as error:
            return lost_node(url, error)
