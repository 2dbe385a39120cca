"""Ray Serve's application-level autoscaling policy around `next_decision`.

A configuration names the class as `autoscaling_policy.policy_function`. Ray Serve's controller makes one
instance each time it builds the application, and calls the instance about ten times a second.
"""

import json
import logging
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from serve_app.controller.canaries import Canaries
from serve_app.controller.contexts import SnapshotBuilder, has_requests_at_zero, ingress_room, running_ids
from serve_app.controller.decided import Decided, Part
from serve_app.controller.decision_records import HEARTBEAT_S, Journal, Kind
from serve_app.controller.document_exchange import DocumentExchange, Inbox, Mailbox
from serve_app.controller.model_status import gauges, model_status
from serve_app.controller.shared_fleet import SharedFleet
from serve_app.controller.variants import unsettled_variants, variants_now
from serve_app.patches.ray_idle import controller_rests, wake_controller
from serve_app.policy.decide import Decision, next_decision
from serve_app.policy.ingress_scaling import decide_ingress
from serve_app.policy.inputs import apply_starting_values
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import Memory, Need, PolicyState, drop_forgotten
from serve_app.policy.variant_decision import VariantNow, decide_variants
from serve_app.settings.tree import INGRESS
from serve_app.telemetry.autoscaling_metrics import PRICES, AutoscalingMetrics, ReplicaTime
from serve_app.wire.own_clock import SteadyTime
from serve_app.wire.phases import PROCESS_ENDED, Loss
from serve_app.wire.served_models import ServedApplication, ServedModel

logger = logging.getLogger("ray.serve")

_DECIDE_INTERVAL_S = 0.5
"""The longest interval. While requests are queued for a model at zero, each of Ray's calls decides, because
half a second would be a sixth of a start."""
_REMEMBERED_S = 3600.0
_LONGEST_FAILURE_S = 10.0
"""If all decisions about a model fail for this long, the policy drops the model's memory."""


class ServePolicy:
    """Decides for the ingress and for every engine deployment of one application.

    The answer contains only deployments whose target changes. For these, Ray's own rules have no effect (see
    `_set_target`); the cold-start rule, for example, would ask for one replica while requests are queued at
    zero. Subclasses may replace `decide`.

    Args:
        clock: Unix time in seconds; by default one without steps.
        mailbox: Replaces the documents in Ray's key-value store.
        metrics: Replaces Ray's metrics.
        log: Replaces Ray Serve's log.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        mailbox: Mailbox | None = None,
        metrics: AutoscalingMetrics | None = None,
        log: logging.Logger = logger,
    ) -> None:
        self._clock, self._wall = clock or SteadyTime(), clock or time.time
        self._log = log
        self.mailbox = mailbox
        self.metrics = metrics
        self._journal = Journal()
        self._replica_time = ReplicaTime()
        self._snapshots = SnapshotBuilder()
        self.memories: dict[str, Memory] = {}
        self._news: dict[str, str] = {}
        """By deployment, messages for the operator that no record contains yet."""
        self._ingress_needs: tuple[Need, ...] = ()
        self._look_at_nodes = False
        self._fleet = SharedFleet()
        self._canaries = Canaries()
        self._status: dict[str, dict[str, Any]] = {}
        self._errors = 0
        self._failing_since: dict[str, float] = {}
        self._logged: dict[str, tuple[str, float]] = {}
        self._next_at = 0.0
        self._remembers = False
        self._ran: dict[str, float] = {}
        """When each replica was last running, for the last hour."""
        self._served: frozenset[str] = frozenset()
        """The deployments that were served at the last decision."""

    def decide(
        self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
    ) -> tuple[Decision, PolicyState]:
        """Decide for one model; see `serve_app.policy.decide.next_decision`."""
        return next_decision(snapshot, model.knobs, state, now)

    def __call__(self, contexts: Mapping[Any, Any]) -> tuple[dict[Any, int], dict[Any, dict[str, Any]]]:
        """Return the targets of the deployments that should change. Ray calls this hook.

        Never raises, because Ray would then stop autoscaling the application.
        """
        if not contexts:
            return {}, {}
        now = self._clock()
        if self.mailbox is not None and not controller_rests():
            self.mailbox.hurry()
        try:
            if has_requests_at_zero(contexts.values()):
                wake_controller()
            elif 0.0 < self._next_at - now <= _DECIDE_INTERVAL_S:
                return {}, {}
            self._next_at = now + _DECIDE_INTERVAL_S
            answer = self._answer(contexts, now)
            if self._fleet.waits_for_nodes:
                self._next_at = now  # a request waits for a place that another model may give
                wake_controller()
            return answer, {}
        except Exception as error:
            self._report_error("", "", None, error, now)
            if self.mailbox is not None:
                self._send(self.mailbox, self.mailbox.outbox.unsettled)
            return {}, {}

    def _answer(self, contexts: Mapping[Any, Any], now: float) -> dict[Any, int]:
        mailbox, metrics = self._open(next(iter(contexts.values())).app_name)
        inbox = mailbox.inbox
        if inbox.learned is not None and not self._remembers:
            # Continue with the memories and records of an earlier policy.
            self._remembers = True
            self.memories = {**inbox.learned.memories, **self.memories}
            self._journal.load(inbox.learned.records)
        served = inbox.served
        if served is None:
            return {}  # no document has been read yet, or the ingress has not written one
        known = served.engines()
        self._forget(frozenset(served.models) | frozenset(known), metrics, now)
        metrics.set_gauge("autoscaling_knobs_rejected", float(bool(served.rejected)))
        by_name = {str(ctx.deployment_name): (key, ctx) for key, ctx in contexts.items()}
        key, ingress = by_name.get(INGRESS, (None, None))
        engines = {name: by_name[name][1] for name in known if name in by_name}
        owners = {name: model for model in served.models.values() for name in model.deployments}
        answer: dict[Any, int] = {}
        unsettled: set[str] = set()
        self._ran.update((replica, now) for ctx in engines.values() for replica in running_ids(ctx))
        self._ran = {replica: at for replica, at in self._ran.items() if now - at < _REMEMBERED_S}
        losses: list[Loss] = []
        while mailbox.losses:
            loss = mailbox.losses.popleft()
            ctx = engines.get(loss.deployment)  # None if its model has just been removed
            # A deploy ends a replica that Ray has not yet put into service.
            if ctx is not None and (loss.cause != PROCESS_ENDED or loss.replica in self._ran):
                losses.append(loss)
                model = owners[loss.deployment]
                metrics.count("autoscaling_losses_total", model=model.name, cause=loss.cause)
                self._log.warning("model %s: %s", model.name, loss.reason)
                self._keep("loss", model.deployment, model.name, ctx, loss.reason, "Ray replaces it.")
        decided: dict[str, Decided] = {}
        for name, given in served.models.items():
            if not all(each in engines for each in given.deployments):
                continue  # Ray has not deployed it yet
            ctx = engines[given.deployments[0]]
            model = given
            try:
                model = self._canaries.with_bounds(given, served, inbox)
                if model.variants:
                    now_each = variants_now(model, engines, self._snapshots, ingress, inbox, losses, now)
                    decided[name] = self._decide_variants(model, engines, now_each, now)
                    unsettled |= unsettled_variants(now_each)
                else:
                    snapshot = self._snapshots.build(name, ctx, ingress, inbox, now)
                    snapshot = replace(snapshot, clock_ahead_s=self._wall() - now)
                    if snapshot.ready != snapshot.target or snapshot.draining:
                        unsettled.add(name)
                    decided[name] = Decided(model, ctx, snapshot, self._decide_model(model, snapshot, now))
            except Exception as error:  # other models must still get their decisions
                if now - self._failing_since.setdefault(name, now) >= _LONGEST_FAILURE_S:
                    del self._failing_since[name]
                    self.memories.pop(name, None)  # the memory may be the reason
                self._report_error(name, model.name, ctx, error, now)
            else:
                self._failing_since.pop(name, None)
                self._canaries.note_load(name, decided[name].decision.signals, decided[name].snapshot.ready)
        for version, share, event in self._canaries.look(served, inbox, now, self._wall()):
            if share is not None:
                mailbox.shares.append((version.name, share))
                metrics.count("version_fallbacks_total", model=version.name)
            self._log.warning("model %s: %s", version.name, event)
            ctx = engines.get(version.deployment)
            otherwise = "`tideserve canary` changes the share."
            self._keep("version", version.deployment, version.name, ctx, event, otherwise)
        decided = self._share(decided, ingress, served, inbox, now)
        unsettled |= self._fleet.deployments
        for name, each in decided.items():
            try:
                self._record(each, inbox, metrics, now)
            except Exception as error:
                self._report_error(name, each.model.name, each.ctx, error, now)
            else:
                for target_of, target in (each.targets or {name: each.decision.target}).items():
                    key_of, ctx_of = by_name[target_of]
                    _set_target(answer, key_of, ctx_of, target)
        if ingress is not None:
            try:
                _set_target(answer, key, ingress, self._decide_ingress(ingress, engines, served, inbox, now))
            except Exception as error:
                self._report_error(INGRESS, "", ingress, error, now)
        self._send(mailbox, unsettled)
        return answer

    def _forget(self, served: frozenset[str], metrics: AutoscalingMetrics, now: float) -> None:
        """Forget the deployments that are not `served`: memories after a day, all else at once."""
        self.memories = drop_forgotten(self.memories, served, now)
        if served == self._served:
            return
        self._served = served
        for model in self._journal.models_except(served):
            metrics.withdraw(model)
        known: tuple[dict[str, Any], ...] = (self._news, self._status, self._failing_since)
        for by_deployment in known:
            for name in by_deployment.keys() - served:
                del by_deployment[name]
        for name in self._logged.keys() - served - {"", INGRESS}:
            del self._logged[name]
        self._journal.forget_except(served)
        self._snapshots.forget_except(served)
        self._replica_time.forget_except(served)
        self._canaries.forget_except(served)

    def _decide_model(self, model: ServedModel, snapshot: Snapshot, now: float) -> Decision:
        name = model.deployment
        memory = self._recall(model)
        decision, state = self.decide(model, snapshot, memory.state, now)
        self.memories[name] = replace(memory, state=state)
        return self._with_news(name, decision)

    def _with_news(self, name: str, decision: Decision) -> Decision:
        news = (self._news[name],) if name in self._news else ()
        return replace(decision, notes=(*decision.notes, *news))

    def _decide_variants(
        self, model: ServedModel, contexts: Mapping[str, Any], variants: Sequence[VariantNow], now: float
    ) -> Decided:
        name, memory, ahead_s = model.deployment, self._recall(model), self._wall() - now
        snapshots = [apply_starting_values(each.snapshot, model.knobs, memory.state)[0] for each in variants]
        variants = [
            replace(
                each,
                snapshot=replace(snapshot, clock_ahead_s=ahead_s),
                takes=each.served.deployment in self._fleet.takers,
            )
            for each, snapshot in zip(variants, snapshots, strict=True)
        ]
        found, state = decide_variants(
            variants,
            model.knobs,
            memory.state,
            now,
            lambda snapshot, state: self.decide(model, snapshot, state, now),
        )
        self.memories[name] = replace(memory, state=state)
        parts = {each.served.deployment: Part(contexts[each.served.deployment], each) for each in variants}
        targets = {deployment: found.targets[part.variant.name] for deployment, part in parts.items()}
        lead = max(targets, key=lambda each: (targets[each], -parts[each].variant.served.usd_per_hour))
        ctx = contexts[variants[0].served.deployment]
        decision = self._with_news(name, found.decision)
        return Decided(model, ctx, found.snapshot, decision, None, targets, lead, parts)

    def _share(
        self,
        decided: dict[str, Decided],
        ingress: Any | None,
        served: ServedApplication,
        inbox: Inbox,
        now: float,
    ) -> dict[str, Decided]:
        """Return the decisions with the targets that fit; after an error, each model's own."""
        try:
            return self._fleet.share(decided, ingress, served, inbox, now)
        except Exception as error:
            self._fleet = SharedFleet()
            self._report_error("", "", None, error, now)
            return decided

    def _record(self, each: Decided, inbox: Inbox, metrics: AutoscalingMetrics, now: float) -> None:
        model, snapshot, decision = each.model, each.snapshot, each.decision
        name, old = model.deployment, snapshot.target
        at = now + snapshot.clock_ahead_s
        record = self._journal.note(name, model.name, model.knobs.mode, old, snapshot.ready, decision, at)
        if record is not None:
            self._news.pop(name, None)
        if record is not None and record["kind"] == "change":
            self._log.info("autoscaling decision %s", json.dumps(record, separators=(",", ":")))
        starts = inbox.cold_starts(each.starts or name)
        status = self._status[name] = model_status(model, snapshot, decision, starts)
        if model.version_of:
            status["canary"] = self._canaries.document(model, inbox)
        if each.grant is not None and each.grant.place:
            eta_s = each.grant.eta_s
            # Whole seconds, because every change of the status is written.
            status["line"] = {"place": each.grant.place, "eta_s": None if eta_s is None else round(eta_s)}
        metrics.set(model.name, gauges(model, status, decision), decision.binding)
        if decision.variants:
            status["variants"] = decision.variants
            status |= {name: decision.signals[name] for name in PRICES}
            metrics.set_variants(model.name, decision.variants, decision.signals)
        replicas = {state: status[state] for state in ("starting", "ready", "draining")}
        for state, seconds in self._replica_time.add(name, replicas, now).items():
            metrics.count("autoscaling_replica_seconds_total", seconds, model=model.name, state=state)
        if decision.target != old:
            direction = "up" if decision.target > old else "down"
            metrics.count("autoscaling_decisions_total", model=model.name, direction=direction)
        if each.grant is not None and each.grant.gives_to:
            metrics.count("autoscaling_handovers_total", model=model.name, taker=each.grant.gives_to)

    def _recall(self, model: ServedModel) -> Memory:
        memory, news = self.memories.get(model.deployment, Memory()).of(model.identity)
        self.memories[model.deployment] = memory
        if news:
            self._news[model.deployment] = news
            self._log.warning("autoscaling of %s: %s", model.deployment, news)
        return memory

    def _decide_ingress(
        self, ctx: Any, engines: Mapping[str, Any], served: ServedApplication, inbox: Inbox, now: float
    ) -> int:
        """Return the target of the ingress, which leaves the room that engines need."""
        ongoing = self._snapshots.ongoing_of_ingress(ctx, now)
        ready, old = ctx.current_num_replicas, ctx.target_num_replicas
        room = ingress_room(ctx, engines, served, inbox, now)
        decision = decide_ingress(ongoing, ready, old, served.ingress, self._ingress_needs, now, room)
        self._ingress_needs = decision.recent_needs
        self._look_at_nodes = decision.wanted > old
        if decision.target != old:
            self._log.info("ingress replicas %d -> %d: %s", old, decision.target, decision.reason)
        return decision.target

    def _send(self, mailbox: Mailbox, unsettled: Collection[str]) -> None:
        outbox = mailbox.outbox
        outbox.unsettled = unsettled
        looked_at_nodes = outbox.look_at_nodes
        outbox.look_at_nodes = self._look_at_nodes or self._fleet.looks_at_nodes
        served = mailbox.inbox.served
        zygote = served is not None and served.zygote
        outbox.status = {
            "policy_errors": self._errors,
            "zygote": zygote,
            "decisions_seq": self._journal.seq,
            "models": dict(self._status),
        }
        outbox.memories = dict(self.memories) if self._remembers else None
        if self._journal.seq != outbox.decisions_seq:
            outbox.decisions = self._journal.records()
            outbox.decisions_seq = self._journal.seq
            mailbox.send()
        elif outbox.look_at_nodes and not looked_at_nodes:
            mailbox.send()

    def _open(self, app: str) -> tuple[Mailbox, AutoscalingMetrics]:
        self.metrics = self.metrics or AutoscalingMetrics()
        if self.mailbox is None:
            self.mailbox = exchange = DocumentExchange(app)
            exchange.start()
            # Ray drops the old policy at every change of the configuration; its thread ends with it.
            weakref.finalize(self, exchange.stop)
        return self.mailbox, self.metrics

    def _report_error(
        self, deployment: str, model: str, ctx: Any | None, error: Exception, now: float
    ) -> None:
        self._errors += 1
        text = f"{type(error).__name__}: {error}"
        if self.metrics is not None:
            self.metrics.count("autoscaling_policy_errors_total")
        last, at = self._logged.get(deployment, ("", 0.0))
        if text == last and 0 <= now - at < HEARTBEAT_S:
            return  # the same error at every decision is logged every 10 s
        self._logged[deployment] = (text, now)
        self._log.exception(
            "autoscaling of %s: the policy raised; its target is kept", deployment or "the application"
        )
        reason = f"The policy raised {text[:500]}. The target is kept."
        otherwise = "The target changes when the policy works again."
        self._keep("error", deployment, model, ctx, reason, otherwise)

    def _keep(self, kind: Kind, deployment: str, model: str, ctx: Any, reason: str, otherwise: str) -> None:
        """Record an event that keeps the target."""
        target, ready = (0, 0) if ctx is None else (ctx.target_num_replicas, ctx.current_num_replicas)
        kept = Decision(target, target, kind, reason, otherwise)
        self._journal.add(kind, deployment, model, "", target, ready, kept, self._wall())


def _set_target(answer: dict[Any, int], key: Any, ctx: Any, target: int) -> None:
    """Have Ray set the target to `target` in this step.

    Ray applies delays, factors and its cold-start rule to a policy's answer, relative to the target in the
    context. Ray reads this target after the policy's call. If it already equals the answer, the rules have no
    effect.
    """
    if target != ctx.target_num_replicas:
        answer[key] = target
        ctx.target_num_replicas = target
        if not target and not ctx.current_num_replicas:
            # A pending replica is taken back while requests wait. The cold-start rule looks at this number.
            ctx.current_num_replicas = 1
