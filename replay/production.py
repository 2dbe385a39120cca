"""The production policy in a replay: the adapter that Ray Serve calls, with the data that Ray would pass."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from replay.fleet.fleet import Fleet
from replay.quiet import pass_idle_time, quiet_until
from replay.ray_semantics import Context, apply
from serve_app.controller.document_exchange import Deployment, Inbox, Mailbox
from serve_app.controller.serve_policy import ServePolicy
from serve_app.policy.decide import Decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.tree import INGRESS
from serve_app.telemetry.autoscaling_metrics import AutoscalingMetrics
from serve_app.wire.phases import DRAINING
from serve_app.wire.served_models import ServedApplication, ServedModel
from serve_app.wire.signals import (
    ENGINE_FIELDS,
    INGRESS_FIELDS,
    ONGOING_REQUESTS,
    IngressSignals,
    ingress_key,
)

_LOG = logging.getLogger("tideserve.replay")
"""A replay's changes are in its report; only errors are logged."""
_LOG.setLevel(logging.WARNING)

EPOCH = 1_700_000_000.0
"""Unix time at which replays begin, for schedules."""
MODEL = "model"
ENGINE = "Engine-model"
_INGRESS_KEYS = {name: ingress_key(ENGINE, name) for name in INGRESS_FIELDS} | {
    ONGOING_REQUESTS: ONGOING_REQUESTS
}
_REPORT_EVERY = 2
"""Decisions between two reports of an engine replica, half a second each; half the replicas at a time."""


@dataclass(slots=True)
class _Stamped:
    timestamp: float
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Replica:
    """A source of reports, as Ray identifies it."""

    unique_id: str


class _Memory(Mailbox):
    """The policy's mailbox without Ray's key-value store: reads and writes take no time."""

    def __init__(self, knobs: Knobs) -> None:
        served = ServedApplication({ENGINE: ServedModel(MODEL, ENGINE, knobs)}, IngressKnobs(max_replicas=1))
        super().__init__(Inbox(served))
        self.changes: list[dict[str, Any]] = []
        self._seq = 0

    def send(self) -> None:
        for record in reversed(self.outbox.decisions):
            if record["seq"] <= self._seq:
                break
            if record["kind"] != "heartbeat":
                self.changes.append(record)
        self._seq = self.outbox.decisions_seq


class _NoMeter(AutoscalingMetrics):
    """Takes metrics and exports none."""

    def __init__(self) -> None:
        pass

    def set(self, model: str, values: Mapping[str, float], binding: str) -> None:
        pass

    def withdraw(self, model: str) -> None:
        pass

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        pass

    def set_gauge(self, name: str, value: float, **labels: str) -> None:
        pass


class _Watched(ServePolicy):
    """The production policy, with the arguments and results of its latest decision."""

    latest: tuple[Snapshot, Knobs, PolicyState, Decision, float] | None = None

    def decide(
        self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
    ) -> tuple[Decision, PolicyState]:
        decision, state = super().decide(model, snapshot, state, now)
        self.latest = snapshot, model.knobs, state, decision, now
        return decision, state


class Production:
    """`ServePolicy` as a controller, with fresh memory.

    It learns as in production: from reports of the replicas once a second, from reports of the ingress twice
    a second and half a second old, and from cold starts.

    Args:
        knobs: The knobs of its only model.
        policy: `ServePolicy`, or a class that replaces its `decide`.
    """

    name = "ours"
    interval_s = 0.5

    def __init__(self, knobs: Knobs, policy: type[ServePolicy] = ServePolicy) -> None:
        self._now = 0.0
        self._memory = _Memory(knobs)
        # Idle time is skipped only for the production policy.
        watched = _Watched if policy is ServePolicy else policy
        self._policy = watched(lambda: EPOCH + self._now, self._memory, _NoMeter(), _LOG)
        self._columns: dict[str, dict[Replica, list[_Stamped]]] = {name: {} for name in ENGINE_FIELDS}
        self._replicas: dict[int, Replica] = {}
        self._reports: dict[Replica, list[_Stamped]] = {}
        self._steps = 0
        self._quiet_until = -1.0
        self._cold_starts = 0
        self._gateway = Replica("ingress")
        self._ingress: dict[str, dict[Replica, list[_Stamped]]] = {}

    @property
    def wanted(self) -> int | None:
        """The replicas that the terms of the last decision asked for."""
        status = self._memory.outbox.status.get("models", {}).get(ENGINE)
        return int(status["wanted"]) if status else None

    @property
    def errors(self) -> int:
        """Decisions that raised."""
        return int(self._memory.outbox.status.get("policy_errors", 0))

    def decisions(self) -> list[dict[str, Any]]:
        """The records of its changes; their times are seconds since the replay began."""
        return [{**record, "at": record["at"] - EPOCH} for record in self._memory.changes]

    @property
    def decision(self) -> Decision | None:
        """The last decision; None before the first."""
        latest = self._policy.latest if isinstance(self._policy, _Watched) else None
        return latest[3] if latest is not None else None

    def quiet_until(self, next_arrival: float) -> float:
        """The step before the next decision that matters, in which half of the replicas report."""
        latest = self._policy.latest if isinstance(self._policy, _Watched) else None
        if latest is None or latest[-1] != EPOCH + self._now:
            return 0.0
        steps = (quiet_until(*latest, EPOCH + next_arrival) - latest[-1]) // self.interval_s - 1.0
        if steps <= 1.0:
            return 0.0
        self._steps += int(steps) - 1
        self._quiet_until = self._now + steps * self.interval_s
        memory, ready = self._policy.memories[ENGINE], latest[0].ready
        state = pass_idle_time(memory.state, ready, EPOCH + self._quiet_until, self.interval_s)
        self._policy.memories[ENGINE] = replace(memory, state=state)
        return self._quiet_until

    def step(self, fleet: Fleet) -> int:
        """One turn of Ray's controller."""
        self._now = fleet.now
        self._steps += 1
        self._read_replicas(fleet)
        if fleet.now == self._quiet_until:
            self._read_ingress(fleet)
            return fleet.target
        self._read_documents(fleet)
        running = [self._replicas[slot] for slot in fleet.ready_slots]
        contexts = {
            ENGINE: Context(ENGINE, "replay", fleet.target, len(running), running, self._columns),
            INGRESS: Context(INGRESS, "replay", 1, 1, [self._gateway], self._ingress),
        }
        answer, _ = self._policy(contexts)
        self._read_ingress(fleet)
        return apply(contexts, answer)[ENGINE]

    def _read_replicas(self, fleet: Fleet) -> None:
        ready = {slot: fleet.names[slot] for slot in fleet.ready_slots}
        for slot in [s for s, r in self._replicas.items() if r.unique_id != f"r{ready.get(s)}"]:
            gone = self._replicas.pop(slot)
            self._reports.pop(gone, None)
            for column in self._columns.values():
                column.pop(gone, None)
        due = []
        for slot, number in ready.items():
            replica = self._replicas.get(slot)
            if replica is None:
                self._replicas[slot] = Replica(f"r{number}")
            elif (self._steps + number) % _REPORT_EVERY:
                continue
            due.append(slot)
        for slot, values in zip(due, fleet.report(due).tolist(), strict=True):
            self.report(self._replicas[slot], fleet.now, values)

    def report(self, source: Replica, measured_at: float, values: Sequence[float]) -> None:
        """Pass the policy a report of a replica or of the ingress. A test may delay or lose it."""
        samples = self._reports.get(source)
        if samples is None:
            samples = self._reports[source] = [_Stamped(0.0, 0.0) for _ in values]
            for column, sample in zip(self._columns_of(source), samples, strict=True):
                column[source] = [sample]
        for sample, value in zip(samples, values, strict=True):
            sample.timestamp = EPOCH + measured_at
            sample.value = value

    def _columns_of(self, source: Replica) -> Iterable[dict[Replica, list[_Stamped]]]:
        if source is not self._gateway:
            return self._columns.values()
        # Ray knows a name from the first report that has it.
        self._ingress.update({key: {} for key in _INGRESS_KEYS.values()})
        return self._ingress.values()

    def _read_ingress(self, fleet: Fleet) -> None:
        values = [*astuple(ingress_signals(fleet)), float(fleet.open_requests)]
        self.report(self._gateway, fleet.now, values)

    def _read_documents(self, fleet: Fleet) -> None:
        """Pass the policy the phases of replicas that start, and the measured starts."""
        inbox = self._memory.inbox
        known = inbox.deployments.get(ENGINE, Deployment())
        seen = known.cold_starts
        for number, seconds, warm_node in fleet.cold_starts[self._cold_starts :]:
            shares = fleet.profile.cold_start_phases
            whole = sum(shares.values()) or 1.0
            phases = {name: seconds * share / whole for name, share in shares.items()}
            document = {
                "phase": "ready",
                "since": self._now,
                "durations_s": phases,
                "warm_node": warm_node,
                "identity": "",
            }
            seen = seen.add({f"r{number}": document})
        self._cold_starts = len(fleet.cold_starts)
        no_room = "no room" if fleet.pending else ""
        settled = not fleet.starting and not fleet.draining and not known.phases
        room = (no_room, fleet.warm_node_free)
        if settled and seen is known.cold_starts and room == (known.no_room, known.warm_node):
            return
        starting = {
            f"r{start.number}": {"phase": "weights_and_kv_cache", "since": EPOCH + start.began_at}
            for start in fleet.starting.values()
        }
        draining = {f"d{number}": {"phase": DRAINING, "since": 0.0} for number in range(fleet.draining)}
        deployment = Deployment({**starting, **draining}, seen, *room)
        self._memory.inbox = Inbox(inbox.served, {ENGINE: deployment})


def ingress_signals(fleet: Fleet) -> IngressSignals:
    """Return the report of the ingress."""
    totals = fleet.memory.totals[0]
    head, tail = int(totals["held_head"]), int(totals["held_tail"])
    arrived = fleet.memory.requests["arrived"]
    background = float(totals["background_held"])
    # Clients of the others wait until the queue has room.
    queued = min(background, float(fleet.conditions.max_held))
    return IngressSignals(
        arrivals_total=float(totals["arrivals"]),
        arrived_bytes_total=float(totals["arrived_bytes"]),
        held_requests=float(totals["held"]),
        held_bytes=float(totals["held_bytes"]),
        oldest_held_s=float(fleet.now - arrived[head]) if head >= 0 else 0.0,
        newest_held_s=float(fleet.now - arrived[tail]) if tail >= 0 else 0.0,
        background_held_requests=queued,
        background_held_bytes=float(totals["background_held_bytes"]) * queued / max(background, 1.0),
    )
