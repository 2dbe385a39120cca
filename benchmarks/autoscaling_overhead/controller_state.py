"""A fleet under Ray's real autoscaling state: its replicas' reports are made up, the rest is Ray's."""

import random
import time
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from ray.serve._private.autoscaling_state import ApplicationAutoscalingState, DeploymentAutoscalingState
from ray.serve._private.common import (
    RUNNING_REQUESTS_KEY,
    DeploymentID,
    ReplicaID,
    ReplicaMetricReport,
    TimeStampedValue,
)
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.config import AutoscalingConfig

from serve_app.app import ENGINE_INTERVAL_S, open_bounds
from serve_app.controller.mailbox import Inbox, Mailbox
from serve_app.controller.serve_policy import ServePolicy
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.telemetry.autoscaling_metrics import AutoscalingMetrics
from serve_app.wire.names import INGRESS
from serve_app.wire.served_models import ServedApplication, ServedModel
from serve_app.wire.signals import EngineSignals, IngressSignals, ingress_key

APP = "tideserve"
MODEL = "model"
ENGINE = "Engine-model"
REPLICAS_PER_INGRESS = 50
SAMPLES = 5
"""In every series Ray keeps: one a second over the 5 s we ask for, one in 6 s over Ray's default 30 s."""

Values = dict[str, float]


class Reports:
    """The reports of busy replicas, second by second: values vary, and totals grow."""

    def __init__(self, engines: int) -> None:
        self._draw = random.Random(7)  # the same load in every run
        self.engines = engines
        self.ingress = max(1, engines // REPLICAS_PER_INGRESS)
        self._second = 0

    def next(self) -> tuple[list[EngineSignals], list[IngressSignals]]:
        """The reports of the next second."""
        self._second += 1
        return ([self._engine() for _ in range(self.engines)], [self._ingress() for _ in range(self.ingress)])

    def _engine(self) -> EngineSignals:
        draw, passed = self._draw, self._second
        running = draw.randint(2, 12)
        return EngineSignals(
            running_requests=running,
            waiting_requests=draw.randint(0, 2),
            running_tokens=running * 1000,
            waiting_tokens=draw.randint(0, 2000),
            ongoing_requests=running + 1,
            kv_cache_usage_ratio=0.1,
            kv_cache_tokens=200_000,
            prompt_tokens_total=2000.0 * passed,
            finished_requests_total=2.0 * passed,
            finished_prompt_tokens_total=2000.0 * passed,
            finished_generation_tokens_total=256.0 * passed,
            steps=60,
            step_s=0.013 + 0.004 * draw.random(),
            step_batch=draw.uniform(2, 12),
            step_prefill_tokens=draw.uniform(0, 100),
            step_kv_tokens=draw.uniform(2e3, 1.2e4),
            ttft_count=60,
            ttft_queue_p50_s=0.008,
            ttft_queue_p90_s=0.03,
            ttft_queue_p95_s=0.05,
            ttft_queue_p99_s=0.1,
            ttft_prefill_p50_s=0.06,
            ttft_prefill_p90_s=0.08,
            ttft_prefill_p95_s=0.09,
            ttft_prefill_p99_s=0.12,
            itl_count=7000,
            itl_p50_s=0.013,
            itl_p90_s=0.015,
            itl_p95_s=0.02,
            itl_p96_s=0.03,
            itl_p97_s=0.05,
            itl_p98_s=0.055,
            itl_p99_s=0.06,
        )

    def _ingress(self) -> IngressSignals:
        arrived = 2.0 * self.engines / self.ingress * self._second
        return IngressSignals(arrivals_total=arrived, arrived_bytes_total=4000.0 * arrived)


class Fleet:
    """One application with one model, `engines` replicas of it, and the policy that decides for both."""

    def __init__(self, engines: int, knobs: Knobs) -> None:
        self.reports = Reports(engines)
        self.knobs = knobs
        served = ServedApplication(
            {ENGINE: ServedModel(MODEL, ENGINE, knobs)}, IngressKnobs(max_replicas=1000)
        )
        self.state = ApplicationAutoscalingState(APP)
        self.state.register(
            # Ray would pickle the policy and make a copy of it; the copy's cost is not a decision's.
            SimpleNamespace(
                policy_function="ServePolicy",
                policy_kwargs={},
                get_policy=lambda: ServePolicy,
                is_default_policy_function=lambda: False,
            )
        )
        self.policy: ServePolicy = self.state._policy.__wrapped__
        self.policy.mailbox = Mailbox(Inbox(served))  # nothing reads or writes Ray's key-value store
        self.policy.metrics = AutoscalingMetrics()
        self._replicas = {
            ENGINE: _replicas(ENGINE, engines),
            INGRESS: _replicas(INGRESS, self.reports.ingress),
        }
        for name, replicas in self._replicas.items():
            self.state.register_deployment(DeploymentID(name, APP), _info(_OPEN_BOUNDS), len(replicas))
            self.state.update_running_replica_ids(DeploymentID(name, APP), replicas)
        self.targets = {DeploymentID(name, APP): len(replicas) for name, replicas in self._replicas.items()}

    def report(self) -> None:
        """Have every replica report."""
        engines, ingress = self.reports.next()
        now = time.time()
        for replica, said in zip(self._replicas[ENGINE], engines, strict=True):
            self._record(replica, asdict(said), now)
        for replica, seen in zip(self._replicas[INGRESS], ingress, strict=True):
            values = {ingress_key(ENGINE, name): value for name, value in asdict(seen).items()}
            self._record(replica, {**values, "ongoing_requests": 30.0}, now)

    def _record(self, replica: ReplicaID, values: Values, now: float) -> None:
        series = {name: [TimeStampedValue(now, value)] * SAMPLES for name, value in values.items()}
        self.state.record_request_metrics_for_replica(ReplicaMetricReport(replica, series, now))

    def context(self, deployment: str) -> Any:
        """Ray's context of one deployment, as a policy gets it."""
        identity = DeploymentID(deployment, APP)
        return self.state._deployment_autoscaling_states[identity].get_autoscaling_context(
            self.targets[identity]
        )

    def call(self) -> None:
        """One turn of Ray's controller in which the policy decides."""
        self.policy._next_at = 0.0
        self.state.get_decision_num_replicas(self.targets)

    def call_between(self) -> None:
        """One turn in which the policy, asked more often than it decides, does not."""
        self.policy._next_at = time.time() + 0.25
        self.state.get_decision_num_replicas(self.targets)


class PeerFleet:
    """As many replicas under Ray Serve's default policy, on the requests they report as running."""

    def __init__(self, engines: int) -> None:
        identity = DeploymentID(ENGINE, "peer")
        self.state = DeploymentAutoscalingState(identity)
        self.state.register(_info(AutoscalingConfig(min_replicas=1, max_replicas=10_000)), engines)
        self._replicas = [ReplicaID(f"r{n}", identity) for n in range(engines)]
        self._draw = random.Random(7)
        self.state.update_running_replica_ids(self._replicas)

    def report(self) -> None:
        """Have every replica report the last 30 s of its running requests."""
        now = time.time()
        for replica in self._replicas:
            start = now - self._draw.uniform(24, 30)
            series = [
                TimeStampedValue(start + 6.0 * n, float(self._draw.randint(0, 4))) for n in range(SAMPLES)
            ]
            report = ReplicaMetricReport(replica, {RUNNING_REQUESTS_KEY: series}, now)
            self.state.record_request_metrics_for_replica(report)

    def call(self) -> None:
        """One turn of Ray's controller."""
        self.state.get_decision_num_replicas(len(self._replicas))


def _replicas(deployment: str, count: int) -> list[ReplicaID]:
    return [ReplicaID(f"{deployment.lower()}-{n:05d}", DeploymentID(deployment, APP)) for n in range(count)]


def _info(config: AutoscalingConfig) -> DeploymentInfo:
    return DeploymentInfo(DeploymentConfig(autoscaling_config=config), ReplicaConfig.create(object), 0, "")


_OPEN_BOUNDS = AutoscalingConfig(**open_bounds(0, ENGINE_INTERVAL_S))
