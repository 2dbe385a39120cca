"""Ray Serve's application-level autoscaling policy around `decide`.

Named in a configuration as `autoscaling_policy.policy_function`. Ray Serve's controller makes one
instance, a new one whenever it builds the application anew, and calls it about ten times a second.
"""

from __future__ import annotations

import json
import logging
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from serve_app.controller.contexts import engine_readings, ingress_readings, reported_readings
from serve_app.controller.ingress_fleet import IngressFleet
from serve_app.controller.journal import HEARTBEAT_S, Journal
from serve_app.controller.replica_time import ReplicaTime
from serve_app.controller.start_times import count_phases
from serve_app.controller.sync import Deployment, Exchange, Inbox, Learned, Outbox
from serve_app.policy.decide import Decision, decide
from serve_app.policy.snapshot import Capacity, Snapshot
from serve_app.policy.state import PolicyState
from serve_app.telemetry.autoscaling_metrics import AutoscalingMetrics
from serve_app.wire.served_models import ServedApplication, ServedModel
from serve_app.wire.signals import IngressSignals, Reading

logger = logging.getLogger("ray.serve")

INGRESS = "Ingress"
_DECIDE_INTERVAL_S = 0.5
"""Signals are a second old; from zero, half a second is half of what a wake may take."""
_FORGIVING = 20
"""Errors in a row, ten seconds of them, before a model's memory is given up."""
_PENDING_GRACE_S = 5.0
"""From asking for a replica to the first line of its constructor it takes Ray a second or two."""


class Correspondence(Protocol):
    """What the policy reads and writes; see `Exchange`."""

    inbox: Inbox
    outbox: Outbox

    def send(self) -> None:
        """Have what is in the outbox written soon."""


class Meter(Protocol):
    """Where the policy's metrics go; see `AutoscalingMetrics`."""

    def set(self, model: str, values: Mapping[str, float], binding: str) -> None:
        """Publish what a decision came to."""

    def count_change(self, model: str, old: int, new: int) -> None:
        """Count a change of a target."""

    def count_replica_seconds(self, model: str, seconds: Mapping[str, float]) -> None:
        """Count the time of replicas, by their state."""

    def set_knobs_rejected(self, rejected: bool) -> None:
        """Publish whether the knobs last given are invalid, so that those before stay in force."""

    def count_error(self) -> None:
        """Count a decision that raised."""


class ServePolicy:
    """Decides for every engine deployment of one application by its own model's signals, and for the ingress.

    A deployment is left out of the answer while its target is right, which is what keeps Ray's own
    rules (its cold-start rule above all, which asks for one replica while anything queues at zero)
    from deciding instead. Subclasses may replace `decide`.

    Args:
        clock: Unix time in seconds; the system's if not given.
        exchange: What to read and write instead of the documents in Ray's key-value store.
        meter: Where metrics go instead of Ray's.
        log: Where changes and errors are logged instead of Ray Serve's log.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        exchange: Correspondence | None = None,
        meter: Meter | None = None,
        log: logging.Logger = logger,
    ) -> None:
        self._clock = clock
        self._log = log
        self._exchange = exchange
        self._metrics = meter
        self._journal = Journal()
        self._replica_time = ReplicaTime()
        self._states: dict[str, PolicyState] = {}
        self._ingress = IngressFleet()
        self._pending_since: dict[str, float] = {}
        self._status: dict[str, dict[str, Any]] = {}
        self._errors = 0
        self._failures: dict[str, int] = {}
        self._said: dict[str, tuple[str, float]] = {}
        self._next_at = 0.0
        self._remembers = False

    def decide(self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float) -> Decision:
        """Decide for one model; see `serve_app.policy.decide.decide`."""
        return decide(snapshot, model.knobs, state, now)

    def __call__(self, contexts: Mapping[Any, Any]) -> tuple[dict[Any, int], dict[Any, dict[str, Any]]]:
        """Ray's hook: replicas by deployment, for those that should change.

        Raises nothing: Ray would stop autoscaling the application altogether.
        """
        if not contexts:
            return {}, {}
        now = time.time() if self._clock is None else self._clock()
        if 0.0 < self._next_at - now <= _DECIDE_INTERVAL_S:
            return {}, {}
        self._next_at = now + _DECIDE_INTERVAL_S
        try:
            return self._answer(contexts, now), {}
        except Exception as error:
            self._report_error("", "", 0, 0, error, now)
            if self._exchange is not None:
                self._send(self._exchange, self._exchange.outbox.unsettled)
            return {}, {}

    def _answer(self, contexts: Mapping[Any, Any], now: float) -> dict[Any, int]:
        exchange = self._open(next(iter(contexts.values())).app_name)
        inbox = exchange.inbox
        if inbox.learned is not None and not self._remembers:
            self._remember(inbox.learned)
        served = inbox.served
        if served is None:
            return {}  # nothing has been read yet, or the ingress has not said what is served
        assert self._metrics is not None
        self._metrics.set_knobs_rejected(bool(served.rejected))
        by_name = {str(ctx.deployment_name): (key, ctx) for key, ctx in contexts.items()}
        wishes: dict[Any, int] = {}
        ingress = by_name.get(INGRESS)
        unsettled: set[str] = set()
        for name, model in served.models.items():
            if name not in by_name:
                continue
            key, ctx = by_name[name]
            try:
                target = self._decide_for(model, ctx, ingress[1] if ingress else None, unsettled, now)
            except Exception as error:
                # One model's trouble is not the others'.
                self._forgive(name)
                self._report_error(
                    name, model.name, ctx.target_num_replicas, ctx.current_num_replicas, error, now
                )
                continue
            self._failures.pop(name, None)
            if target != ctx.target_num_replicas:
                _ask(wishes, key, ctx, target)
        if ingress is not None:
            try:
                engines = {name: by_name[name][1] for name in served.models if name in by_name}
                self._decide_ingress(wishes, *ingress, engines, served, now)
            except Exception as error:
                counts = (ingress[1].target_num_replicas, ingress[1].current_num_replicas)
                self._report_error(INGRESS, "", *counts, error, now)
        self._send(exchange, unsettled)
        return wishes

    def _forgive(self, name: str) -> None:
        """Forget a model's memory if it has raised several times: what was remembered may be the reason."""
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] % _FORGIVING == 0:
            self._states.pop(name, None)

    def _send(self, exchange: Correspondence, unsettled: Collection[str]) -> None:
        outbox = exchange.outbox
        outbox.unsettled = unsettled
        outbox.look_at_nodes = self._ingress.wants_more
        outbox.status = {"policy_errors": self._errors, "models": dict(self._status)}
        if self._journal.seq != outbox.decisions_seq:
            outbox.decisions = self._journal.records()
            outbox.decisions_seq = self._journal.seq
            exchange.send()

    def _decide_for(self, model: ServedModel, ctx: Any, ingress: Any, unsettled: set[str], now: float) -> int:
        name = model.deployment
        assert self._exchange is not None
        known = self._exchange.inbox.deployments.get(name, Deployment())
        snapshot = self._snapshot(name, ctx, ingress, known, now)
        old = snapshot.target
        if snapshot.ready != old or snapshot.draining:
            unsettled.add(name)
        decision = self.decide(model, snapshot, self._states.get(name, PolicyState()), now)
        self._states[name] = decision.state
        record = self._journal.note(name, model.name, model.knobs.mode, old, snapshot.ready, decision, now)
        if record is not None and record["kind"] == "change":
            self._log.info("autoscaling decision %s", json.dumps(record, separators=(",", ":")))
        self._publish(model, snapshot, decision, known, now)
        return decision.target

    def _snapshot(self, name: str, ctx: Any, ingress: Any, known: Deployment, now: float) -> Snapshot:
        running = frozenset(str(replica.unique_id) for replica in ctx.running_replicas)
        phases = count_phases(known.phases, running, now)
        missing = max(0, ctx.target_num_replicas - ctx.current_num_replicas)
        starting = min(missing, phases.starting)
        pending = missing - starting
        if pending:
            since = self._pending_since.setdefault(name, now)
        else:
            self._pending_since.pop(name, None)
            since = now
        # A moment without a place is how every start begins.
        capacity = (
            Capacity(starting, pending, now - since, self._why_pending(known))
            if now - since >= _PENDING_GRACE_S
            else Capacity(missing if missing else 0)
        )
        ingresses, ingress_ready = self._ingress_side(name, ingress, now)
        return Snapshot(
            target=ctx.target_num_replicas,
            ready=ctx.current_num_replicas,
            ingress_ready=ingress_ready,
            engines=engine_readings(ctx.raw_metrics or {}, now),
            ingress=ingresses,
            draining=phases.draining,
            capacity=capacity,
            cold_start_s=known.cold_starts.total_s,
        )

    def _ingress_side(
        self, name: str, ctx: Any, now: float
    ) -> tuple[dict[str, Reading[IngressSignals]], int]:
        """What ingress replicas say of a model, and how many there are to say it: those that run, and those
        that drain and still hold requests, whom Ray leaves out."""
        assert self._exchange is not None
        told = ingress_readings(ctx.raw_metrics or {}, name, now) if ctx is not None else {}
        written = reported_readings(self._exchange.inbox.ingress_reports, name, told, now)
        if ctx is None:
            return written, max(1, len(written))
        running = {str(replica.unique_id) for replica in ctx.running_replicas}
        return {**told, **written}, ctx.current_num_replicas + len(written.keys() - running)

    def _why_pending(self, known: Deployment) -> str:
        assert self._exchange is not None
        nodes = self._exchange.inbox.gpu_nodes
        return "; ".join(part for part in (known.no_room, nodes.message if nodes is not None else "") if part)

    def _publish(
        self, model: ServedModel, snapshot: Snapshot, decision: Decision, known: Deployment, now: float
    ) -> None:
        capacity = snapshot.capacity
        self._status[model.deployment] = {
            "model": model.name,
            "mode": model.knobs.mode,
            "wanted": decision.wanted,
            "target": decision.target,
            "ready": snapshot.ready,
            "starting": capacity.starting,
            "pending": capacity.pending,
            "pending_s": round(capacity.pending_s),
            "draining": snapshot.draining,
            "reason": capacity.reason,
            "cold_start_s": snapshot.cold_start_s,
            "phases_s": known.cold_starts.phases_s(),
        }
        assert self._metrics is not None
        values = {
            "wanted_replicas": float(decision.wanted),
            "target_replicas": float(decision.target),
            "ready_replicas": float(snapshot.ready),
            "starting_replicas": float(capacity.starting),
            "pending_replicas": float(capacity.pending),
            "draining_replicas": float(snapshot.draining),
            "replica_capacity_rps": decision.explanation.signals["replica_capacity_rps"],
            "gpus_per_replica": model.resources.get("GPU", 0.0),
        }
        if snapshot.cold_start_s is not None:
            values["cold_start_seconds"] = snapshot.cold_start_s
        self._metrics.set(model.name, values, decision.explanation.binding)
        present = {"starting": capacity.starting, "ready": snapshot.ready, "draining": snapshot.draining}
        self._metrics.count_replica_seconds(
            model.name, self._replica_time.look(model.deployment, present, now)
        )
        if decision.target != snapshot.target:
            self._metrics.count_change(model.name, snapshot.target, decision.target)

    def _decide_ingress(
        self,
        wishes: dict[Any, int],
        key: Any,
        ctx: Any,
        engines: dict[str, Any],
        served: ServedApplication,
        now: float,
    ) -> None:
        assert self._exchange is not None
        decision = self._ingress.decide(ctx, engines, served, self._exchange.inbox, now)
        if decision.target != ctx.target_num_replicas:
            self._log.info(
                "ingress replicas %d -> %d: %s", ctx.target_num_replicas, decision.target, decision.reason
            )
            _ask(wishes, key, ctx, decision.target)

    def _open(self, app: str) -> Correspondence:
        if self._exchange is None:
            self._metrics = self._metrics or AutoscalingMetrics()
            exchange = Exchange(app)
            exchange.outbox.learned = _Learned(self)
            exchange.start()
            # Ray lets go of the old policy at every change of the configuration; its thread ends with it.
            weakref.finalize(self, exchange.stop)
            self._exchange = exchange
        return self._exchange

    def _remember(self, learned: Learned) -> None:
        """Take over what an earlier policy has left."""
        self._remembers = True
        self._states = {**learned.states, **self._states}
        self._journal.load(learned.records)

    def _report_error(
        self, deployment: str, model: str, target: int, ready: int, error: Exception, now: float
    ) -> None:
        self._errors += 1
        text = f"{type(error).__name__}: {error}"
        if self._metrics is not None:
            self._metrics.count_error()
        last, at = self._said.get(deployment, ("", 0.0))
        if text == last and 0 <= now - at < HEARTBEAT_S:
            return  # it raises twice a second
        self._said[deployment] = (text, now)
        self._log.exception(
            "autoscaling of %s: the policy raised; its target is kept", deployment or "the application"
        )
        self._journal.note_error(deployment, model, target, ready, text[:500], now)


class _Learned:
    """What a policy has learned; nothing until it knows what the one before had, and once it is gone."""

    def __init__(self, policy: ServePolicy) -> None:
        self._policy = weakref.ref(policy)

    def __call__(self) -> dict[str, Any]:
        policy = self._policy()
        if policy is None or not policy._remembers:
            return {}
        return {"states": {name: state.document() for name, state in dict(policy._states).items()}}


def _ask(wishes: dict[Any, int], key: Any, ctx: Any, target: int) -> None:
    """Have Ray set the target to `target` in this very step.

    Ray applies delays, factors and its cold-start rule to what a policy answers, all relative to the
    target in the context, which it reads after the policy. With the target in place already none of
    them has anything left to do.
    """
    wishes[key] = target
    ctx.target_num_replicas = target
