"""Build the policy's snapshots from Ray Serve's autoscaling contexts and from documents. No I/O."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import cache
from math import isfinite
from operator import attrgetter, itemgetter
from typing import Any

from serve_app.cluster.ray_resources import room_for_ingress, share_nodes
from serve_app.controller.document_exchange import Deployment, Inbox
from serve_app.patches.ray import metric_reports
from serve_app.policy.reports import Snapshot
from serve_app.settings.identity import identity_number
from serve_app.settings.tree import INGRESS
from serve_app.wire.batches import NO_BATCHES
from serve_app.wire.ingress_reports import IngressReport
from serve_app.wire.own_clock import OwnClock
from serve_app.wire.phases import DRAINING, FAILED
from serve_app.wire.resources import Resources
from serve_app.wire.served_models import ServedApplication
from serve_app.wire.signals import (
    ENGINE_FIELDS,
    ENGINE_IDENTITY,
    INGRESS_FIELDS,
    ONGOING_REQUESTS,
    EngineSignals,
    IngressSignals,
    Reading,
    S,
    ingress_key,
)

_PENDING_GRACE_S = 5.0
"""Ray takes one to two seconds from the request for a replica to the first line of its constructor."""

_LOAD = tuple(
    f"{lane}{name}"
    for lane in ("", "background_")
    for name in (
        "running_requests",
        "waiting_requests",
        "running_tokens",
        "waiting_tokens",
        "ongoing_requests",
    )
)

_newest = itemgetter(-1)
_value = attrgetter("value")

Reports = Mapping[Any, Mapping[str, Sequence[Any]]]
"""By replica and metric, a series of samples with `timestamp` and `value` (`metric_reports`)."""


class Seen(OwnClock):
    """Remembers one kind of report of each replica: its age, and what was read. Use it for one deployment."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, tuple[Any, float, Any]] = {}
        """By replica: the report as Ray has it, its time, and its signals. Engines report once a second, and
        decisions come twice a second."""


class SnapshotBuilder:
    """Builds snapshots. Remembers when reports were first seen, and since when replicas are pending."""

    def __init__(self) -> None:
        self._pending_since: dict[str, float] = {}
        self._seen: defaultdict[tuple[str, str], Seen] = defaultdict(Seen)
        """By deployment and kind of report."""

    def build(
        self, name: str, ctx: Any, ingress: Any | None, inbox: Inbox, now: float, model: str = ""
    ) -> Snapshot:
        """Return the snapshot of engine deployment `name` from its context and that of the ingress.

        `model` is the name under which ingress replicas report, if it is another one.
        """
        known, starts = inbox.deployments.get(name, Deployment()), inbox.cold_starts(name)
        loading, draining = count_phases(known.phases, running_ids(ctx), now)
        starting, pending, pending_s = self._count_missing(name, ctx, loading, now)
        # Running ingress replicas, and draining ones with queued requests, which Ray does not report.
        of_ingress = metric_reports(ingress) if ingress is not None else {}
        about = model or name
        reported = ingress_readings(of_ingress, about, now, self._seen[name, "ingress"])
        written = reported_readings(
            inbox.ingress_reports, about, reported, now, self._seen[name, "written by ingress"]
        )
        if ingress is None:
            ingress_ready = max(1, len(written))
        else:
            ingress_ready = ingress.current_num_replicas + len(written.keys() - running_ids(ingress))
        return Snapshot(
            target=ctx.target_num_replicas,
            ready=ctx.current_num_replicas,
            ingress_ready=ingress_ready,
            engines=engine_readings(
                metric_reports(ctx), now, self._seen[name, "engines"], inbox.identity(name)
            ),
            ingress={**reported, **written},
            draining=draining,
            starting=starting,
            pending=pending,
            pending_s=pending_s,
            pending_reason=_why_pending(known, inbox) if pending else "",
            batches=inbox.batches.get(inbox.model(name), NO_BATCHES),
            warm_node=known.warm_node,
            warm_node_start_s=starts.on(warm_node=True).total_s,
            cold_node_start_s=starts.on(warm_node=False).total_s,
        )

    def ongoing_of_ingress(self, ctx: Any, now: float) -> dict[str, tuple[float, float]]:
        """Return (open requests, age in seconds) of every ingress replica that has reported."""
        return ongoing_of_ingress(metric_reports(ctx), now, self._seen[INGRESS, "ongoing"])

    def forget_except(self, deployments: Container[str]) -> None:
        for name in [name for name in self._pending_since if name not in deployments]:
            del self._pending_since[name]
        for key in [key for key in self._seen if key[0] != INGRESS and key[0] not in deployments]:
            del self._seen[key]

    def _count_missing(self, name: str, ctx: Any, loading: int, now: float) -> tuple[int, int, float]:
        """Return how many requested replicas are starting, how many are pending, and for how many seconds."""
        missing = max(0, ctx.target_num_replicas - ctx.current_num_replicas)
        starting = min(missing, loading)
        pending = missing - starting
        if not pending:
            self._pending_since.pop(name, None)
            return missing, 0, 0.0
        pending_s = now - self._pending_since.setdefault(name, now)
        if pending_s < _PENDING_GRACE_S:
            return missing, 0, 0.0  # Ray needs a moment to start the process
        return starting, pending, pending_s


def _why_pending(known: Deployment, inbox: Inbox) -> str:
    """Return why the cluster has no room, or else why the last replica could not start; "" if unknown."""
    no_room = "; ".join(filter(None, (known.no_room, inbox.why_pods_wait)))
    failed = [document for document in known.phases.values() if document["phase"] == FAILED]
    if no_room or not failed:
        return no_room
    last = max(failed, key=lambda document: float(document["since"]))
    return f"the last start failed in {last['during']}: {last['reason']}"


def has_requests_at_zero(contexts: Collection[Any]) -> bool:
    """Return whether the ingress has queued requests for a deployment whose target is zero."""
    targets = Counter[str]()
    # The ingress reports about models, and variants have the names of their models before the "@".
    for ctx in contexts:
        targets[str(ctx.deployment_name).partition("@")[0]] += ctx.target_num_replicas
    at_zero = [name for name, target in targets.items() if not target]
    ingress = next((ctx for ctx in contexts if ctx.deployment_name == INGRESS), None)
    if not at_zero or ingress is None:
        return False
    keys = [ingress_key(name, "held_requests") for name in at_zero]
    held = [report.get(key) for report in metric_reports(ingress).values() for key in keys]
    return any(series and _value(_newest(series)) > 0 for series in held)


def ingress_room(
    ctx: Any, engines: Mapping[str, Any], served: ServedApplication, inbox: Inbox, now: float
) -> int | None:
    """Return how many ingress replicas may be added; None if ingress and engines share no resources.

    `ctx` is the context of the ingress; `engines` has the contexts of the engine deployments by name.
    """
    need = served.ingress_resources
    if not any(amount > 0 for amount in need.values()):
        return None
    if inbox.nodes is None:
        return 0  # `DocumentExchange` reads the nodes as soon as more replicas are wanted
    models = served.engines()
    if not share_nodes(inbox.nodes, need, [model.resources for model in models.values()]):
        return None
    unplaced: int = max(0, ctx.target_num_replicas - ctx.current_num_replicas)
    awaited: list[Resources] = []
    for name, engine in engines.items():
        phases = inbox.deployments.get(name, Deployment()).phases
        starting, _ = count_phases(phases, running_ids(engine), now)
        # A replica with a phase document has its node. For one to two seconds before that document, it counts
        # twice. A model at zero may wake at any time, and must find room.
        missing = engine.target_num_replicas - engine.current_num_replicas - starting
        awaited += [models[name].resources] * (missing if engine.target_num_replicas else 1)
    return max(0, room_for_ingress(inbox.nodes, need, awaited, served.ingress.max_replicas) - unplaced)


def running_ids(ctx: Any) -> frozenset[str]:
    """Return the ids of the replicas that Ray counts as running."""
    return frozenset(str(replica.unique_id) for replica in ctx.running_replicas)


def count_phases(
    phases: Mapping[str, Mapping[str, Any]], running: frozenset[str], now: float
) -> tuple[int, int]:
    """Return how many replicas of a deployment are starting, and how many are draining.

    Ray has killed a replica whose drain is over its time limit. `phases` has the documents by replica, and
    `now` is Unix time in seconds.
    """
    starting = draining = 0
    for replica, document in phases.items():
        if document["phase"] == DRAINING:
            draining += now <= document.get("until", now)
        elif document["phase"] != FAILED and replica not in running:
            # `ready` counts too: Ray has not put it into service yet.
            starting += 1
    return starting, draining


def engine_readings(
    reports: Reports, now: float, seen: Seen, identity: str = ""
) -> dict[str, Reading[EngineSignals]]:
    """Return the newest report of every engine replica with a report, by replica id.

    `seen` knows the earlier reports. During an update, replicas of the former identity still serve and
    report. Only their load counts: their steps, latencies and sizes say nothing about replicas of `identity`.
    """
    former = _replicas_other_than(identity, reports)
    return {
        replica: Reading(_load(signals) if replica in former else signals, age)
        for replica, age, signals in _read(reports, ENGINE_FIELDS, EngineSignals, now, seen)
    }


def _replicas_other_than(identity: str, reports: Reports) -> frozenset[str]:
    """Return the replicas that report another identity."""
    if not identity:
        return frozenset()
    number = identity_number(identity)
    return frozenset(
        str(replica.unique_id)
        for replica, report in reports.items()
        if (series := report.get(ENGINE_IDENTITY)) and _value(_newest(series)) != number
    )


def _load(said: EngineSignals) -> EngineSignals:
    """Return a report with only the load."""
    return EngineSignals(**{name: getattr(said, name) for name in _LOAD})


@cache
def _ingress_names(deployment: str) -> tuple[str, ...]:
    return tuple(ingress_key(deployment, name) for name in INGRESS_FIELDS)


def ingress_readings(
    reports: Reports, deployment: str, now: float, seen: Seen
) -> dict[str, Reading[IngressSignals]]:
    """Return the newest report of every ingress replica about the model of engine deployment `deployment`."""
    read = _read(reports, _ingress_names(deployment), IngressSignals, now, seen)
    return {replica: Reading(signals, age) for replica, age, signals in read}


def reported_readings(
    reports: Mapping[str, IngressReport],
    deployment: str,
    known: Container[str],
    now: float,
    seen: OwnClock,
) -> dict[str, Reading[IngressSignals]]:
    """Return the fresh documents of ingress replicas with queued requests that are not in `known`.

    `known` has the replicas that Ray reports. The others are draining, or the controller has just restarted.
    A stale document is from a killed replica.
    """
    names = _ingress_names(deployment)
    ages = seen.ages("reports", {replica: report.at for replica, report in reports.items()}, now)
    readings = {
        replica: Reading(IngressSignals(*[report.values[name] for name in names]), ages[replica])
        for replica, report in reports.items()
        if replica not in known and report.values.keys() >= set(names)
    }
    return {replica: reading for replica, reading in readings.items() if reading.fresh}


def ongoing_of_ingress(reports: Reports, now: float, seen: Seen) -> dict[str, tuple[float, float]]:
    """Return (open requests, age in seconds) of every ingress replica that has reported."""
    read = _read(reports, (ONGOING_REQUESTS,), float, now, seen)
    return {replica: (ongoing, age) for replica, age, ongoing in read}


def _read(
    reports: Reports, names: Sequence[str], make: Callable[..., S], now: float, seen: Seen
) -> list[tuple[str, float, S]]:
    """Return (replica id, age, what `make` returns for the newest values) of replicas with all `names`."""
    read: dict[str, tuple[Any, float, S]] = {}
    count = len(names)
    for replica, report in reports.items():
        known = seen.read.get(replica.unique_id)
        if known is None or known[0] is not report:
            newest = [series[-1] for series in map(report.get, names) if series]
            if len(newest) < count:
                continue
            known = report, newest[0].timestamp, make(*map(_value, newest))
        read[replica.unique_id] = known
    seen.read = read
    stamps = {replica: known[1] for replica, known in read.items()}
    # A report without a finite time is ignored.
    timed = stamps if isfinite(sum(stamps.values())) else {k: at for k, at in stamps.items() if isfinite(at)}
    if not timed:
        return []
    return [(replica, age, read[replica][2]) for replica, age in seen.ages("reports", timed, now).items()]
