"""The policy's side: decisions about all models from Ray's own autoscaling state, and the documents."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import SimpleNamespace
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
PER_NODE = 8
Fleet = Mapping[str, list[str]]
"""The ids of replicas, by engine deployment."""
_TURNS, _WATCHED = 24, 12
_TURN_S = 0.5


class _TimedPolicy(ServePolicy):
    def __init__(self, clock: Callable[[], float], mailbox: DocumentExchange) -> None:
        super().__init__(clock, mailbox, AutoscalingMetrics(), logging.getLogger("scale"))
        self.seconds: list[float] = []

    def __call__(self, contexts: Mapping[Any, Any]) -> Any:
        begun = time.process_time()
        answer = super().__call__(contexts)
        self.seconds.append(time.process_time() - begun)
        return answer


def measure(store: FakeStore, fleet: Fleet, ingresses: int) -> dict[str, float]:
    """Return figures of decisions and documents while all replicas are busy."""
    _fill(store, fleet)
    now, replicas = time.time(), sum(map(len, fleet.values()))
    nodes = tuple(Node({"GPU": PER_NODE}, {"GPU": 0.0}, f"{n:056d}") for n in range(-(-replicas // PER_NODE)))
    exchange = DocumentExchange(APP, lambda: nodes, PendingPods())
    policy = _TimedPolicy(lambda: now, exchange)
    state = ApplicationAutoscalingState(APP)
    is_default = {"policy_kwargs": {}, "is_default_policy_function": lambda: False}
    # Without Ray's pickling.
    state.register(SimpleNamespace(policy_function="policy", get_policy=lambda: policy, **is_default))
    running = {INGRESS: [f"i{n}" for n in range(ingresses)], **fleet}
    bounds = DeploymentConfig(autoscaling_config=AutoscalingConfig(**open_bounds(0, ENGINE_INTERVAL_S)))
    for name, ids in running.items():
        info = DeploymentInfo(bounds, ReplicaConfig.create(object), start_time_ms=0, deployer_job_id="")
        state.register_deployment(_id(name), info, len(ids))
        state.update_running_replica_ids(_id(name), [ReplicaID(each, _id(name)) for each in ids])
    turns = []
    for turn in range(_TURNS):
        now += _TURN_S
        _report(state, running, now)
        begun = time.process_time()
        exchange.turn(now)
        turns.append(time.process_time() - begun)
        if turn == _WATCHED:
            store.take_counts()
        state.get_decision_num_replicas({_id(name): len(ids) for name, ids in running.items()})
    calls, sent = store.take_counts()
    seconds = (_TURNS - _WATCHED) * _TURN_S
    sizes = {
        kind: len(store.kept.get(f"{kind}/{APP}".encode(), b"")) for kind in (DECISIONS, STATUS, LEARNED)
    }
    return {
        "decision about all models, ms": 1e3 * min(policy.seconds[_WATCHED:]),
        "policy's documents: ms of CPU a second": 1e3 * sum(turns[_WATCHED:]) / seconds,
        "policy's documents: GCS calls a second": calls / seconds,
        "policy's documents: kB a second": sent / seconds / 1e3,
        **{f"document `{kind}`, kB": size / 1e3 for kind, size in sizes.items()},
    }


def _id(deployment: str) -> DeploymentID:
    return DeploymentID(deployment, APP)


def _fill(store: FakeStore, fleet: Fleet) -> None:
    """Store the knobs of all models, and the phase document of each replica."""
    models = {
        name: ServedModel(name, name, Knobs(min_replicas=len(ids), max_replicas=len(ids)), {"GPU": 1.0})
        for name, ids in fleet.items()
    }
    put_document(KNOBS, APP, ServedApplication(models, IngressKnobs()).document(time.time()))
    phases_s = {
        "process": 1.0,
        "imports": 0.4,
        "configuration": 0.2,
        "weights_and_kv_cache": 20.0,
        "warm_up": 3.0,
    }
    about = {"durations_s": phases_s, "warm_node": True, "identity": "0" * 16, "node": "0" * 56}
    document = json.dumps({"phase": "ready", "since": time.time() - 600.0, **about})
    for name, ids in fleet.items():
        for replica in ids:
            publish_phase(APP, name, replica, document)
            store.replicas.append((name, replica))


def _report(state: ApplicationAutoscalingState, running: Fleet, now: float) -> None:
    """Have ingress replicas and half of the engine replicas report."""
    passed = now % 10_000
    engine = EngineSignals(
        running_requests=4, running_tokens=4e3, ongoing_requests=5, kv_cache_tokens=4e5, itl_count=7e3,
        prompt_tokens_total=2e3 * passed, finished_requests_total=2 * passed, steps=70, step_s=0.014,
        finished_prompt_tokens_total=2e3 * passed, finished_generation_tokens_total=256 * passed,
        step_batch=4, step_kv_tokens=4e3, step_prefill_tokens=50, ttft_count=60, ttft_queue_p95_s=0.05,
        itl_p95_s=0.02,
    )  # fmt: skip
    arrived = asdict(IngressSignals(arrivals_total=20 * passed, arrived_bytes_total=4e4 * passed))
    ingress = {ingress_key(name, key): value for name in running for key, value in arrived.items()}
    for name, ids in running.items():
        said = {"ongoing_requests": 30.0, **ingress} if name == INGRESS else asdict(engine)
        values = {key: [TimeStampedValue(now, value)] for key, value in said.items()}
        # Engines report once a second, each at its own moment.
        for replica in ids if name == INGRESS else ids[round(now / _TURN_S) % 2 :: 2]:
            state.record_request_metrics_for_replica(
                ReplicaMetricReport(ReplicaID(replica, _id(name)), values, now)
            )
