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

from serve_app.controller.ingress_fleet import IngressFleet
from serve_app.controller.journal import HEARTBEAT_S, Journal
from serve_app.controller.mailbox import Deployment, Inbox, Learned, Mailbox
from serve_app.controller.model_status import gauges, model_status
from serve_app.controller.replica_time import ReplicaTime
from serve_app.controller.snapshot_builder import SnapshotBuilder
from serve_app.controller.sync import Sync
from serve_app.policy.decide import Decision, decide
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.telemetry.autoscaling_metrics import AutoscalingMetrics
from serve_app.wire.names import INGRESS
from serve_app.wire.served_models import ServedModel

logger = logging.getLogger("ray.serve")

_DECIDE_INTERVAL_S = 0.5
"""Signals are a second old; from zero, half a second is half of what a wake may take."""
_FAILURES_TOLERATED = 20
"""Errors in a row, ten seconds of them, before a model's memory is given up."""


class Metrics(Protocol):
    """Where the policy's metrics go; see `AutoscalingMetrics`."""

    def set(self, model: str, values: Mapping[str, float], binding: str) -> None:
        """Publish the numbers of a decision."""

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
        mailbox: What to read and write instead of the documents in Ray's key-value store.
        metrics: Where metrics go instead of Ray's.
        log: Where changes and errors are logged instead of Ray Serve's log.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        mailbox: Mailbox | None = None,
        metrics: Metrics | None = None,
        log: logging.Logger = logger,
    ) -> None:
        self._clock = clock
        self._log = log
        self._mailbox = mailbox
        self._metrics = metrics
        self._journal = Journal()
        self._replica_time = ReplicaTime()
        self._snapshots = SnapshotBuilder()
        self._states: dict[str, PolicyState] = {}
        self._ingress = IngressFleet()
        self._status: dict[str, dict[str, Any]] = {}
        self._errors = 0
        self._failures: dict[str, int] = {}
        self._logged: dict[str, tuple[str, float]] = {}
        self._next_at = 0.0
        self._remembers = False

    def decide(self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float) -> Decision:
        """Decide for one model; see `serve_app.policy.decide.decide`."""
        return decide(snapshot, model.knobs, state, now)

    def __call__(self, contexts: Mapping[Any, Any]) -> tuple[dict[Any, int], dict[Any, dict[str, Any]]]:
        """Ray's hook: return the replicas of each deployment that should change.

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
            self._report_error("", "", None, error, now)
            if self._mailbox is not None:
                self._send(self._mailbox, self._mailbox.outbox.unsettled)
            return {}, {}

    def _answer(self, contexts: Mapping[Any, Any], now: float) -> dict[Any, int]:
        mailbox = self._open(next(iter(contexts.values())).app_name)
        inbox = mailbox.inbox
        if inbox.learned is not None and not self._remembers:
            self._take_over(inbox.learned)
        served = inbox.served
        if served is None:
            return {}  # nothing has been read yet, or the ingress has not said what is served
        assert self._metrics is not None
        self._metrics.set_knobs_rejected(bool(served.rejected))
        by_name = {str(ctx.deployment_name): (key, ctx) for key, ctx in contexts.items()}
        key, ingress = by_name.get(INGRESS, (None, None))
        engines = {name: by_name[name][1] for name in served.models if name in by_name}
        answer: dict[Any, int] = {}
        unsettled: set[str] = set()
        for name, ctx in engines.items():
            model = served.models[name]
            try:
                target = self._decide_model(model, ctx, ingress, inbox, unsettled, now)
            except Exception as error:  # the other models are decided all the same
                self._count_failure(name)
                self._report_error(name, model.name, ctx, error, now)
            else:
                self._failures.pop(name, None)
                _set_target(answer, by_name[name][0], ctx, target)
        if ingress is not None:
            try:
                _set_target(answer, key, ingress, self._decide_ingress(ingress, engines, inbox, now))
            except Exception as error:
                self._report_error(INGRESS, "", ingress, error, now)
        self._send(mailbox, unsettled)
        return answer

    def _decide_model(
        self, model: ServedModel, ctx: Any, ingress: Any, inbox: Inbox, unsettled: set[str], now: float
    ) -> int:
        name = model.deployment
        snapshot = self._snapshots.build(name, ctx, ingress, inbox, now)
        old = snapshot.target
        if snapshot.ready != old or snapshot.draining:
            unsettled.add(name)
        decision = self.decide(model, snapshot, self._states.get(name, PolicyState()), now)
        self._states[name] = decision.state
        record = self._journal.note(name, model.name, model.knobs.mode, old, snapshot.ready, decision, now)
        if record is not None and record["kind"] == "change":
            self._log.info("autoscaling decision %s", json.dumps(record, separators=(",", ":")))
        starts = inbox.deployments.get(name, Deployment()).cold_starts
        self._status[name] = model_status(model, snapshot, decision, starts.phases_s())
        self._measure(model, snapshot, decision, now)
        return decision.target

    def _measure(self, model: ServedModel, snapshot: Snapshot, decision: Decision, now: float) -> None:
        assert self._metrics is not None
        self._metrics.set(model.name, gauges(model, snapshot, decision), decision.explanation.binding)
        replicas = {
            "starting": snapshot.capacity.starting,
            "ready": snapshot.ready,
            "draining": snapshot.draining,
        }
        seconds = self._replica_time.add(model.deployment, replicas, now)
        self._metrics.count_replica_seconds(model.name, seconds)
        if decision.target != snapshot.target:
            self._metrics.count_change(model.name, snapshot.target, decision.target)

    def _decide_ingress(self, ctx: Any, engines: Mapping[str, Any], inbox: Inbox, now: float) -> int:
        decision = self._ingress.decide(ctx, engines, inbox, now)
        old = ctx.target_num_replicas
        if decision.target != old:
            self._log.info("ingress replicas %d -> %d: %s", old, decision.target, decision.reason)
        return decision.target

    def _send(self, mailbox: Mailbox, unsettled: Collection[str]) -> None:
        outbox = mailbox.outbox
        outbox.unsettled = unsettled
        outbox.look_at_nodes = self._ingress.wants_more
        outbox.status = {"policy_errors": self._errors, "models": dict(self._status)}
        if self._journal.seq != outbox.decisions_seq:
            outbox.decisions = self._journal.records()
            outbox.decisions_seq = self._journal.seq
            mailbox.send()

    def _open(self, app: str) -> Mailbox:
        if self._mailbox is None:
            self._metrics = self._metrics or AutoscalingMetrics()
            self._mailbox = sync = Sync(app)
            sync.outbox.learned = _Learned(self)
            sync.start()
            # Ray drops the old policy at every change of the configuration; its thread ends with it.
            weakref.finalize(self, sync.stop)
        return self._mailbox

    def _take_over(self, learned: Learned) -> None:
        """Go on with what an earlier policy has left."""
        self._remembers = True
        self._states = {**learned.states, **self._states}
        self._journal.load(learned.records)

    def _count_failure(self, name: str) -> None:
        """Give up a model's memory after several errors in a row: the memory may be the reason."""
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] % _FAILURES_TOLERATED == 0:
            self._states.pop(name, None)

    def _report_error(
        self, deployment: str, model: str, ctx: Any | None, error: Exception, now: float
    ) -> None:
        self._errors += 1
        text = f"{type(error).__name__}: {error}"
        if self._metrics is not None:
            self._metrics.count_error()
        last, at = self._logged.get(deployment, ("", 0.0))
        if text == last and 0 <= now - at < HEARTBEAT_S:
            return  # it raises twice a second
        self._logged[deployment] = (text, now)
        self._log.exception(
            "autoscaling of %s: the policy raised; its target is kept", deployment or "the application"
        )
        target, ready = (0, 0) if ctx is None else (ctx.target_num_replicas, ctx.current_num_replicas)
        self._journal.note_error(deployment, model, target, ready, text[:500], now)


class _Learned:
    """Returns what a policy has learned: nothing before it has taken over, and nothing once it is gone."""

    def __init__(self, policy: ServePolicy) -> None:
        self._policy = weakref.ref(policy)

    def __call__(self) -> dict[str, Any]:
        policy = self._policy()
        if policy is None or not policy._remembers:
            return {}
        return {"states": {name: state.document() for name, state in dict(policy._states).items()}}


def _set_target(answer: dict[Any, int], key: Any, ctx: Any, target: int) -> None:
    """Have Ray set the target to `target` in this very step.

    Ray applies delays, factors and its cold-start rule to what a policy answers, all relative to the
    target in the context, which it reads after the policy. With the target set there already, none of
    them changes anything.
    """
    if target != ctx.target_num_replicas:
        answer[key] = target
        ctx.target_num_replicas = target
