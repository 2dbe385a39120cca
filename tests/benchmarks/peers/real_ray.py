"""Ray Serve's own autoscaling without a cluster: its handle, its wire format and its controller's state."""

import asyncio
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from ray.actor import ActorHandle
from ray.serve import autoscaling_policy
from ray.serve._private import autoscaling_metrics_codec as codec
from ray.serve._private import autoscaling_state, router
from ray.serve._private.autoscaling_state import DeploymentAutoscalingState
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve._private.router import RouterMetricsManager
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.util import metrics

from replay.policies import Sample

EPOCH = 1024.0
DEPLOYMENT = DeploymentID("deployment", "app")
_RECORD_S, _PUSH_S = 6.0, 10.0
_EPS_S = 1e-6


@cache
def _router() -> RequestRouterConfig:
    """Each pickles the class of the router anew: 0.1 s."""
    return RequestRouterConfig()


class RealRay:
    """One deployment, one handle. Shown samples, it answers with the targets that Ray would set.

    What takes place in time (the handle's two loops, the way to the controller) is arranged as
    `HandleReports` says; everything that is computed is Ray's.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **config: Any) -> None:
        self.now = EPOCH
        clock = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now)
        modules: tuple[ModuleType, ...] = (autoscaling_state, autoscaling_policy, router)
        for module in modules:
            monkeypatch.setattr(module, "time", clock)
        settings = DeploymentConfig(
            request_router_config=_router(),
            autoscaling_config=AutoscalingConfig(**{"min_replicas": 0, "max_replicas": 10_000} | config),
        )
        self._state = DeploymentAutoscalingState(DEPLOYMENT)
        info = DeploymentInfo(settings, ReplicaConfig.create(object), start_time_ms=0, deployer_job_id="")
        self._state.register(info, 0)
        self._handle = self._make_handle()
        self._handle._deployment_config = settings
        self._next_record = self._next_push = EPOCH
        self._arrivals = 0.0

    def _make_handle(self) -> RouterMetricsManager:
        tags = ("deployment", "application", "handle", "actor_id")
        controller = SimpleNamespace(
            record_autoscaling_metrics_from_handle=SimpleNamespace(remote=self._receive)
        )
        loop = SimpleNamespace(call_soon_threadsafe=lambda _: None)
        return RouterMetricsManager(
            DEPLOYMENT,
            "handle",
            "actor",
            DeploymentHandleSource.REPLICA,
            cast(ActorHandle, controller),
            metrics.Counter("requests", tag_keys=(*tags, "route")),
            metrics.Gauge("queued", tag_keys=tags),
            metrics.Gauge("running", tag_keys=tags),
            cast(asyncio.AbstractEventLoop, loop),
        )

    def _receive(self, payload: bytes) -> None:
        self._state.record_columnar_metrics_for_handle(codec.decode_handle_flat(payload))

    def decide(self, sample: Sample) -> int:
        """The target after a turn of the controller; then the handle does what is due."""
        self.now = EPOCH + sample.at
        replicas = [ReplicaID(f"r{number}", DEPLOYMENT) for number in sample.replicas.tolist()]
        self._state.update_running_replica_ids(replicas)
        target = self._state.get_decision_num_replicas(sample.target)
        self._observe(sample, replicas)
        return target

    def _observe(self, sample: Sample, replicas: list[ReplicaID]) -> None:
        handle = self._handle
        running = cast(Any, [SimpleNamespace(replica_id=replica) for replica in replicas])
        handle._update_running_replicas(running)
        handle.num_queued_requests = sample.held
        sent = (sample.running + sample.waiting).tolist()
        for replica, count in zip(replicas, sent, strict=True):
            if count or replica in handle.num_requests_sent_to_replicas:
                handle.num_requests_sent_to_replicas[replica] = count
        if self.now + _EPS_S >= self._next_record:
            self._next_record += _RECORD_S
            handle._add_autoscaling_metrics_point()
        if self.now + _EPS_S >= self._next_push:
            self._next_push += _PUSH_S
            self._push()
        elif sample.arrivals > self._arrivals and handle.should_send_scaled_to_zero_optimized_push(
            sample.ready
        ):
            self._push()
        self._arrivals = sample.arrivals

    def _push(self) -> None:
        self._handle._pending_metrics_push_ref = None  # the one before has arrived
        self._handle.push_autoscaling_metrics_to_controller()
