"""The policy's side: decisions about all models from Ray's own autoscaling state, and the documents."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ray.serve._private.autoscaling_state import ApplicationAutoscalingState
from ray.serve._private.common import DeploymentID, ReplicaID, ReplicaMetricReport, TimeStampedValue
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.config import AutoscalingConfig

from benchmarks.scale.fake_store import FakeStore
from serve_app.app import ENGINE_INTERVAL_S, open_bounds
from serve_app.cluster.pending_pods import PendingPods
from serve_app.controller.document_exchange import DocumentExchange
from serve_app.controller.serve_policy import ServePolicy
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.tree import INGRESS
from serve_app.telemetry.autoscaling_metrics import AutoscalingMetrics
from serve_app.wire.documents import DECISIONS, KNOBS, LEARNED, STATUS, put_document
from serve_app.wire.phases import publish_phase
from serve_app.wire.resources import Node
from serve_app.wire.served_models import ServedApplication, ServedModel
from serve_app.wire.signals import EngineSignals, IngressSignals, ingress_key

APP = "scale"
_PER_NODE = 8
_TURNS = 24
_PHASES_S = {
    "process": 1.0,
    "imports": 0.4,
    "configuration": 0.2,
    "weights_and_kv_cache": 20.0,
    "warm_up": 3.0,
}


class _TimedPolicy(ServePolicy):
    """Notes the CPU seconds of each call."""

    def __init__(self, clock: Callable[[], float], mailbox: DocumentExchange) -> None:
        super().__init__(clock, mailbox, AutoscalingMetrics(), logging.getLogger("scale"))
        self.seconds: list[float] = []

    def __call__(self, contexts: Mapping[Any, Any]) -> Any:
        begun = time.process_time()
        answer = super().__call__(contexts)
        self.seconds.append(time.process_time() - begun)
        return answer


class _InProcess:
    """What Ray asks of an `AutoscalingPolicy`, without its pickling."""

    policy_kwargs: Mapping[str, Any] = {}

    def __init__(self, policy: ServePolicy) -> None:
        self.policy_function = "policy"
        self._policy = policy

    def get_policy(self) -> Any:
        return self._policy

    def is_default_policy_function(self) -> bool:
        return False


def names(replicas: int, models: int) -> dict[str, list[str]]:
    """Return the ids of replicas, by engine deployment."""
    found: dict[str, list[str]] = {f"Engine-model-{number}": [] for number in range(models)}
    for number in range(replicas):
        found[f"Engine-model-{number % models}"].append(f"r{number:04d}")
    return found


def fill_store(store: FakeStore, fleet: Mapping[str, list[str]]) -> None:
    """Store the knobs of all models, and the phase document of each replica."""
    knobs = {name: Knobs(min_replicas=len(ids), max_replicas=10_000) for name, ids in fleet.items()}
    served = ServedApplication(
        {name: ServedModel(name[7:], name, knobs[name], {"GPU": 1.0}) for name in fleet}, IngressKnobs()
    )
    put_document(KNOBS, APP, served.document(time.time()))
    store.app = APP
    for name, ids in fleet.items():
        for replica in ids:
            document = {
                "phase": "ready", "since": time.time() - 600.0, "durations_s": _PHASES_S, "warm_node": True,
                "identity": "0" * 16, "node": "0" * 56,
            }  # fmt: skip
            publish_phase(APP, name, replica, json.dumps(document))
            store.replicas.append((name, replica))


def measure(store: FakeStore, replicas: int, models: int, ingresses: int) -> dict[str, float]:
    """Return figures of decisions and documents after two dozen decisions with busy replicas."""
    fleet = names(replicas, models)
    fill_store(store, fleet)
    now = time.time()
    nodes = tuple(
        Node({"GPU": _PER_NODE}, {"GPU": 0.0}, f"{n:056d}") for n in range(-(-replicas // _PER_NODE))
    )
    exchange = DocumentExchange(APP, lambda: nodes, PendingPods())
    policy = _TimedPolicy(lambda: now, exchange)
    state = ApplicationAutoscalingState(APP)
    state.register(_InProcess(policy))
    running = {INGRESS: [f"i{n}" for n in range(ingresses)], **fleet}
    for name, ids in running.items():
        state.register_deployment(_id(name), _info(), len(ids))
        state.update_running_replica_ids(_id(name), [ReplicaID(each, _id(name)) for each in ids])
    targets = {_id(name): len(ids) for name, ids in running.items()}
    turns = []
    for turn in range(_TURNS):
        now += 0.5
        _report(state, running, now)
        begun = time.process_time()
        exchange.turn(now)
        turns.append(time.process_time() - begun)
        if turn == _TURNS // 2:
            store.take_counts()
        state.get_decision_num_replicas(targets)
    calls, sent = store.take_counts()
    seconds = _TURNS // 2 * 0.5
    sizes = {
        kind: len(store.kept.get(f"{kind}/{APP}".encode(), b"")) for kind in (STATUS, DECISIONS, LEARNED)
    }
    return {
        "decision, ms": 1e3 * sorted(policy.seconds)[_TURNS // 2],
        "documents of the policy: ms of CPU a second": 1e3 * sum(turns[_TURNS // 2 :]) / seconds,
        "documents of the policy: calls of the GCS a second": calls / seconds,
        "documents of the policy: kB a second": sent / seconds / 1e3,
        "document of decisions, kB": sizes[DECISIONS] / 1e3,
        "document of the status, kB": sizes[STATUS] / 1e3,
        "document of learned values, kB": sizes[LEARNED] / 1e3,
    }


def _id(deployment: str) -> DeploymentID:
    return DeploymentID(deployment, APP)


def _info() -> DeploymentInfo:
    bounds = AutoscalingConfig(**open_bounds(0, ENGINE_INTERVAL_S))
    return DeploymentInfo(
        DeploymentConfig(autoscaling_config=bounds),
        ReplicaConfig.create(object),
        start_time_ms=0,
        deployer_job_id="",
    )


def _report(state: ApplicationAutoscalingState, running: Mapping[str, list[str]], now: float) -> None:
    """Have each replica report half a second of work."""
    passed = now % 10_000
    engine = asdict(
        EngineSignals(
            running_requests=4, running_tokens=4e3, ongoing_requests=5, kv_cache_tokens=4e5, steps=60, step_s=0.014,
            prompt_tokens_total=2e3 * passed, finished_requests_total=2 * passed, step_batch=4, step_kv_tokens=4e3,
            finished_prompt_tokens_total=2e3 * passed, finished_generation_tokens_total=256 * passed,
            step_prefill_tokens=50, ttft_count=60, ttft_queue_p95_s=0.05, itl_count=7e3, itl_p95_s=0.02,
        )
    )  # fmt: skip
    arrived = asdict(IngressSignals(arrivals_total=20 * passed, arrived_bytes_total=4e4 * passed))
    ingress = {"ongoing_requests": 30.0} | {
        ingress_key(name, each): value
        for name in running
        if name != INGRESS
        for each, value in arrived.items()
    }
    for name, ids in running.items():
        values = {
            key: [TimeStampedValue(now, value)]
            for key, value in (ingress if name == INGRESS else engine).items()
        }
        for replica in ids:
            report = ReplicaMetricReport(ReplicaID(replica, _id(name)), values, now)
            state.record_request_metrics_for_replica(report)
