"""A Serve application whose replicas are made up, under Ray's real autoscaling state.

Ray's controller calls `ApplicationAutoscalingState.get_decision_num_replicas` ten times a second with the
targets it has, and takes the answer as the new targets; so does `FakeApplication.tick`. The mailbox
is kept in memory, because Ray's key-value store needs a cluster; nothing else of the policy is replaced.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import Any, ClassVar, cast

from ray.serve._private.autoscaling_state import ApplicationAutoscalingState
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    HandleMetricReport,
    ReplicaID,
    ReplicaMetricReport,
    TimeStampedValue,
)
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from serve_app.app import ENGINE_INTERVAL_S, open_bounds
from serve_app.controller.document_exchange import Deployment, Inbox, Learned, Mailbox
from serve_app.controller.serve_policy import ServePolicy
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.tree import INGRESS
from serve_app.wire.ingress_reports import IngressReport
from serve_app.wire.resources import Node
from serve_app.wire.served_models import ServedApplication, ServedModel, ServedVariant
from serve_app.wire.signals import EngineSignals, IngressSignals, ingress_key
from tests.policy.build import NOW

APP = "tideserve"
KNOBS = Knobs(
    min_replicas=0,
    max_replicas=10,
    queue_target_per_replica=8,
    headroom=0,
    downscale_delay_s=20,
    downscale_to_zero_delay_s=60,
    forecast=False,
)


def holding(count: int, oldest_s: float = 2.0) -> dict[str, float]:
    """What an ingress replica reports that holds so many requests of a model."""
    return {
        "arrivals_total": count,
        "arrived_bytes_total": 200 * count,
        "held_requests": count,
        "held_bytes": 200 * count,
        "oldest_held_s": oldest_s,
        "newest_held_s": oldest_s,
    }


class FakeMailbox(Mailbox):
    """The policy's mailbox, which counts what is sent."""

    def __init__(self, served: ServedApplication | None) -> None:
        super().__init__(Inbox(served, learned=Learned()))
        self.sent = 0

    def send(self) -> None:
        self.sent += 1


class FakeMetrics:
    """Takes what would be exported."""

    def __init__(self) -> None:
        self.counted: dict[str, list[tuple[str, ...]]] = {}
        """By counter, the labels of each count."""
        self.gauges: dict[str, float] = {}
        self.withdrawn: list[str] = []
        self.values: dict[str, dict[str, float]] = {}
        self.replica_seconds: dict[str, dict[str, float]] = {}
        self.variants: dict[str, dict[str, dict[str, float]]] = {}

    def set(self, model: str, values: dict[str, float], binding: str) -> None:
        self.values[model] = {name.removeprefix("autoscaling_"): value for name, value in values.items()}

    def set_variants(
        self, model: str, variants: Mapping[str, Mapping[str, float]], prices: Mapping[str, float]
    ) -> None:
        self.variants[model] = {name: dict(values) for name, values in variants.items()}

    def withdraw(self, model: str) -> None:
        self.withdrawn.append(model)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self.counted.setdefault(name.removeprefix("autoscaling_"), []).append(tuple(labels.values()))
        if name == "autoscaling_replica_seconds_total":
            totals = self.replica_seconds.setdefault(labels["model"], {})
            totals[labels["state"]] = totals.get(labels["state"], 0.0) + amount

    def set_gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[name] = value

    @property
    def errors(self) -> int:
        return len(self.counted.get("policy_errors_total", ()))


class Clock:
    """Stands in for the `time` module in the policy."""

    def __init__(self) -> None:
        self.now = NOW

    def time(self) -> float:
        return self.now


class _InProcess:
    """What Ray asks of an `AutoscalingPolicy`, without its pickling, which copies the module's globals."""

    policy_kwargs: ClassVar[dict[str, Any]] = {}

    def __init__(self, policy: type[ServePolicy]) -> None:
        self.policy_function = policy.__name__
        self._policy = policy

    def get_policy(self) -> type[ServePolicy]:
        return self._policy

    def is_default_policy_function(self) -> bool:
        return False


def engine_name(model: str) -> str:
    return f"Engine-{model}"


class FakeApplication:
    """Deployments with targets, running replicas and reports.

    Args:
        clock: What the policy takes for the time.
        models: The knobs of each model.
        policy: The policy's class.
        targets: Replicas at the start, running at once; 0 for those not named, 1 ingress.
    """

    def __init__(
        self,
        clock: Clock,
        models: Mapping[str, Knobs],
        *,
        policy: type[ServePolicy] = ServePolicy,
        targets: Mapping[str, int] | None = None,
        ingress: IngressKnobs | None = None,
        others: tuple[str, ...] = (),
        variants: Mapping[str, tuple[ServedVariant, ...]] | None = None,
    ) -> None:
        self.clock = clock
        served = ServedApplication(
            {
                engine_name(model): ServedModel(
                    model, engine_name(model), knobs, variants=(variants or {}).get(model, ())
                )
                for model, knobs in models.items()
            },
            ingress or IngressKnobs(),
        )
        self.mailbox, self.metrics = FakeMailbox(served), FakeMetrics()
        self.state = ApplicationAutoscalingState(APP)
        self.state.register(cast(AutoscalingPolicy, _InProcess(policy)))
        self.policy: ServePolicy = self.state._policy.__wrapped__  # type: ignore[union-attr]
        assert isinstance(self.policy, policy)
        self.policy.mailbox = self.mailbox  # type: ignore[assignment]
        self.policy.metrics = self.metrics  # type: ignore[assignment]
        self.targets: dict[str, int] = {INGRESS: 1}
        self.targets |= dict.fromkeys(served.engines(), 0)
        self.targets |= dict.fromkeys(others, 1)
        self.targets |= {
            name if name in self.targets else engine_name(name): n for name, n in (targets or {}).items()
        }
        self._running: dict[str, list[ReplicaID]] = {}
        self._reports = 0
        for name, target in self.targets.items():
            self.state.register_deployment(self.id(name), _info(), target)
            self.run(name, target)
        self.reports()

    def id(self, deployment: str) -> DeploymentID:
        return DeploymentID(deployment, APP)

    def knobs(self, model: str, **changed: Any) -> None:
        """Change knobs while it runs."""
        served = self.mailbox.inbox.served
        assert served is not None
        name = engine_name(model)
        known = served.models[name]
        new = replace(known, knobs=known.knobs.model_copy(update=changed))
        self.mailbox.inbox = replace(
            self.mailbox.inbox, served=replace(served, models={**served.models, name: new})
        )

    def startup(self, model: str, known: Deployment) -> None:
        """What the documents say of a model's replicas."""
        deployments = {**self.mailbox.inbox.deployments, engine_name(model): known}
        self.mailbox.inbox = replace(self.mailbox.inbox, deployments=deployments)

    def takes(self, ingress: Mapping[str, float], engine: Mapping[str, float]) -> None:
        """What a replica of the ingress takes of the cluster, and what one of every model takes."""
        served = self.mailbox.inbox.served
        assert served is not None
        models = {name: replace(model, resources=engine) for name, model in served.models.items()}
        served = replace(served, models=models, ingress_resources=ingress)
        self.mailbox.inbox = replace(self.mailbox.inbox, served=served)

    def nodes(self, *nodes: Node) -> None:
        """What the cluster's nodes have, as they are read when the policy asks for them."""
        self.mailbox.inbox = replace(self.mailbox.inbox, nodes=nodes)

    def holds_while_draining(self, replica: str, **ingress: Mapping[str, float]) -> None:
        """What an ingress replica that Ray no longer counts has written down, as of now."""
        values: dict[str, float] = {}
        for model, signals in ingress.items():
            said = asdict(IngressSignals(**signals))
            values |= {ingress_key(engine_name(model), field): value for field, value in said.items()}
        reports = {replica: IngressReport(self.clock.now, values)}
        self.mailbox.inbox = replace(self.mailbox.inbox, ingress_reports=reports)

    def silence(self, deployment: str, number: int) -> None:
        """Forget what one replica has reported."""
        self.state.on_replica_stopped(self._running[deployment][number])

    def remove(self, deployment: str) -> None:
        """Remove a deployment that the ingress still names."""
        self.state.deregister_deployment(self.id(deployment))
        del self.targets[deployment], self._running[deployment]

    def run(self, deployment: str, count: int) -> None:
        """Have so many replicas of `deployment` running."""
        replicas = [ReplicaID(f"{deployment}-{n}", self.id(deployment)) for n in range(count)]
        for gone in set(self._running.get(deployment, ())) - set(replicas):
            self.state.on_replica_stopped(gone)
        self._running[deployment] = replicas
        self.state.update_running_replica_ids(self.id(deployment), replicas)

    def report(self, deployment: str, values: Mapping[str, float], number: int = 0) -> None:
        """A report of one replica, as of now. It replaces an earlier one of the same moment."""
        replica = self._running[deployment][number]
        self._reports += 1
        at = self.clock.now
        series = {name: [TimeStampedValue(at, float(value))] for name, value in values.items()}
        # Ray keeps the report that was sent last.
        sent = at + 1e-6 * self._reports
        self.state.record_request_metrics_for_replica(ReplicaMetricReport(replica, series, sent))

    def reports(self, ongoing: float = 0.0, **ingress: Mapping[str, float]) -> None:
        """Reports of every replica: engines with nothing to do, and the ingress with these of each model."""
        served = self.mailbox.inbox.served
        models = [model.name for model in served.models.values()] if served is not None else []
        for name, replicas in self._running.items():
            for number in range(len(replicas)):
                if name == INGRESS:
                    values = {"ongoing_requests": ongoing / len(replicas)}
                    for model in models:
                        said = IngressSignals(**ingress.get(model, {}))
                        values |= {
                            ingress_key(engine_name(model), field): value
                            for field, value in asdict(said).items()
                        }
                    self.report(name, values, number)
                else:
                    self.report(name, asdict(EngineSignals(kv_cache_tokens=2e5)), number)

    def engine(self, model: str, number: int = 0, **signals: float) -> None:
        """A report of one engine replica."""
        said = EngineSignals(**{"kv_cache_tokens": 2e5, **signals})
        self.report(engine_name(model), asdict(said), number)

    def queue_in_ray(self, model: str, requests: float) -> None:
        """Requests that wait in Ray's own queue, as the wake of held requests does."""
        at = self.clock.now
        self.state.record_request_metrics_for_handle(
            HandleMetricReport(
                self.id(engine_name(model)),
                "handle",
                "actor",
                DeploymentHandleSource.REPLICA,
                [TimeStampedValue(at, requests)],
                {},
                at,
            )
        )

    def tick(self, seconds: float = 0.5) -> dict[str, int]:
        """One turn of Ray's controller, `seconds` later. Returns the targets after it."""
        self.clock.now += seconds
        decided = self.state.get_decision_num_replicas({self.id(name): n for name, n in self.targets.items()})
        self.targets |= {deployment.name: count for deployment, count in decided.items()}
        return dict(self.targets)

    def target(self, model: str) -> int:
        return self.targets[engine_name(model)]

    def records(self, model: str) -> list[dict[str, Any]]:
        """The decision records sent so far of one model."""
        return [record for record in self.mailbox.outbox.decisions if record["model"] == model]


@cache  # Ray pickles the class of its router for each configuration: 0.1 s.
def _info() -> DeploymentInfo:
    """As `serve_app.app` sets Ray's own autoscaling: out of the way."""
    return DeploymentInfo(
        DeploymentConfig(autoscaling_config=AutoscalingConfig(**open_bounds(0, ENGINE_INTERVAL_S))),
        ReplicaConfig.create(object),
        start_time_ms=0,
        deployer_job_id="",
    )
