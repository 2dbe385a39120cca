"""The production policy in a replay: the same answers as under Ray, whatever happens to it."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ray.serve._private.common import ReplicaID

from replay.fleet.fleet import Fleet
from replay.production import ENGINE, EPOCH, MODEL, Production
from replay.profile import Profile
from replay.result import Result
from replay.simulation import simulate
from serve_app.controller.serve_policy import ServePolicy
from serve_app.policy.decide import Decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import Memory, PolicyState, restore
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import INGRESS
from serve_app.wire.served_models import ServedModel
from tests.policy.fake_application import Clock, FakeApplication
from tests.replay.controllers import waves
from tests.replay.fleet.build import ENGINES, conditions, fleet, serve

KNOBS = Knobs(
    min_replicas=0, max_replicas=6, downscale_delay_s=10, downscale_to_zero_delay_s=20, upscale_delay_s=2
)
BUSY = [(4.0, 40.0), (25.0, 30.0), (1.0, 30.0), (0.0, 60.0), (10.0, 30.0)]
"""(requests a second, seconds): a rise, a fall, an idle minute, and a wake."""


def replayed(controller: Production, *, of: Profile = ENGINES, initial: int = 1, seed: int = 0) -> Result:
    return simulate(
        waves(BUSY, seed),
        controller,
        of,
        conditions(cold_start_s=(5.0, 9.0), body_noise=0.2, capacity=5, start_failures=0.1, seed=seed),
        bounds=(KNOBS.min_replicas, KNOBS.max_replicas),
        initial=initial,
    )


@pytest.fixture(scope="module")
def usual() -> Result:
    return replayed(Production(KNOBS))


class UnderRay(Production):
    """The same reports also go to a policy in Ray's own autoscaling state, whose answers are noted."""

    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs)
        self.clock = Clock()
        self.clock.now = EPOCH - 1.0
        self.app = FakeApplication(self.clock, {MODEL: knobs})
        self.app.policy._clock = self.clock.time
        # It comes with reports of everybody; here the ingress reports after the first decision.
        self.app.run(INGRESS, 0)
        self.app.run(INGRESS, 1)
        self.answers: list[tuple[int, int]] = []
        self._sent: dict[tuple[str, str], float] = {}

    def step(self, fleet: Fleet) -> int:
        app = self.app
        ingress = {name: dict(column) for name, column in self._ingress.items()}
        self._tell(INGRESS, ingress)
        target = fleet.target
        answer = super().step(fleet)
        self.clock.now = EPOCH + fleet.now
        ids = [ReplicaID(self._replicas[slot].unique_id, app.id(ENGINE)) for slot in fleet.ready_slots]
        for gone in set(app._running[ENGINE]) - set(ids):
            app.state.on_replica_stopped(gone)
        app._running[ENGINE] = ids
        app.state.update_running_replica_ids(app.id(ENGINE), ids)
        self._tell(ENGINE, self._columns)
        app.mailbox.inbox = self._memory.inbox
        app.targets[ENGINE] = target
        self.answers.append((answer, app.tick(0.0)[ENGINE]))
        return answer

    def _tell(self, deployment: str, columns: Mapping[str, Mapping[Any, Any]]) -> None:
        """Have Ray told each report that has not been yet, at its time."""
        names = {replica.unique_id: replica for column in columns.values() for replica in column}
        for number, known in enumerate(self.app._running[deployment]):
            replica = names[known.unique_id] if deployment == ENGINE else self._gateway
            if not columns:
                continue
            at = next(iter(columns.values()))[replica][-1].timestamp
            if self._sent.get((deployment, known.unique_id)) != at:
                self._sent[deployment, known.unique_id] = at
                self.clock.now = at
                values = {name: column[replica][-1].value for name, column in columns.items()}
                self.app.report(deployment, values, number)


def test_decisions_are_those_under_ray() -> None:
    controller = UnderRay(KNOBS)
    replayed(controller)

    assert [there for _, there in controller.answers] == [here for here, _ in controller.answers]
    targets = [here for here, _ in controller.answers]
    assert min(targets) == 0
    assert max(targets) >= 3
    assert controller.app.metrics.errors == controller.errors == 0


class Watching(ServePolicy):
    """Keeps the snapshots of its decisions."""

    seen: ClassVar[list[Snapshot]] = []

    def decide(
        self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
    ) -> tuple[Decision, PolicyState]:
        self.seen.append(snapshot)
        return super().decide(model, snapshot, state, now)


@pytest.fixture
def seen() -> list[Snapshot]:
    Watching.seen.clear()
    return Watching.seen


def test_the_policy_sees_the_reports_of_replicas_and_ingress(seen: list[Snapshot]) -> None:
    made = fleet(2, of=ENGINES)
    controller = Production(KNOBS, Watching)
    for number in range(8):
        serve(made, (0.5 * number + 0.1, 300, 1000), until=0.5 * (number + 1))
        made.settle()
        made.set_target(3)
        controller.step(made)

    first, last = seen[0], seen[-1]
    assert (first.target, first.ready, first.starting) == (3, 2, 1)
    assert first.ingress == {}
    assert {reading.age_s for reading in first.engines.values()} == {0.0}
    # Half of the replicas have reported at this step, the others at the last.
    assert sorted(reading.age_s for reading in last.engines.values()) == [0.0, 0.5]
    assert sum(reading.signals.ongoing_requests for reading in last.engines.values()) in (7, 8)
    # The ingress reported after the last decision, so that this decision is the first to see it.
    (gateway,) = last.ingress.values()
    assert (gateway.age_s, gateway.signals.arrivals_total) == (0.0, 7)
    assert gateway.signals.arrived_bytes_total == pytest.approx(7 * 300 * 4.4)


def test_the_policy_sees_queued_requests_and_their_age(seen: list[Snapshot]) -> None:
    made = fleet(0)
    controller = Production(KNOBS, Watching)
    for number in range(5):
        serve(made, (0.5 * number + 0.1, 100, 5), until=0.5 * (number + 1))
        controller.step(made)

    (gateway,) = seen[-1].ingress.values()
    signals = gateway.signals
    assert (signals.held_requests, signals.oldest_held_s) == (4, pytest.approx(1.9))
    assert signals.newest_held_s == pytest.approx(0.4)
    assert signals.held_bytes == pytest.approx(4 * 440)


def test_policy_sees_starts_and_forgets_stopped_replicas(seen: list[Snapshot]) -> None:
    made = fleet(2, capacity=3, warm_nodes=2, warm_node_start_s=(3.0, 3.0))
    controller = Production(KNOBS, Watching)

    def step(target: int, at: float) -> Snapshot:
        made.set_target(target)
        made.advance(at)
        made.settle()
        controller.step(made)
        return seen[-1]

    assert set(step(2, 0.5).engines) == {"r1", "r2"}
    assert set(step(1, 1.0).engines) == {"r1"}
    step(4, 1.5)
    # The slot of the stopped replica has another one, after 3 s on a warm node.
    assert set(step(4, 4.5).engines) == {"r1", "r3"}
    waiting = step(4, 7.0)
    assert (waiting.starting, waiting.pending, waiting.pending_reason) == (1, 1, "no room")
    started = step(3, 20.0)
    assert set(started.engines) == {"r1", "r3", "r4"}
    assert started.pending_reason == ""
    assert (started.warm_node_start_s, started.cold_node_start_s) == (pytest.approx(3.0), pytest.approx(10.0))


# -- what may happen to the policy


class Raising(ServePolicy):
    """Raises from 30 s on for 20 s."""

    def decide(
        self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
    ) -> tuple[Decision, PolicyState]:
        if 30.0 <= now - EPOCH < 50.0:
            raise RuntimeError("as told")
        return super().decide(model, snapshot, state, now)


def test_errors_of_the_policy_keep_the_target_and_are_counted(
    caplog: pytest.LogCaptureFixture, usual: Result
) -> None:
    with caplog.at_level(logging.ERROR, "tideserve.replay"):
        result = replayed(Production(KNOBS, Raising))
    timeline = result.timeline
    meanwhile = (timeline.at_s >= 30.0) & (timeline.at_s < 50.0)

    assert result.policy_errors == 40
    assert len(set(timeline.target[meanwhile])) == 1
    assert len(set(timeline.target)) > 2
    assert "as told" in caplog.text
    assert [record["kind"] for record in result.decisions].count("error") >= 1
    assert usual.policy_errors == 0


class Restarted(Production):
    """A new policy takes over every `every` decisions, with or without what the old one remembered."""

    def __init__(self, knobs: Knobs, every: int, *, remembers: bool) -> None:
        super().__init__(knobs)
        self.every, self.remembers = every, remembers
        self.turns = 0

    def step(self, fleet: Fleet) -> int:
        self.turns += 1
        if self.turns % self.every == 0:
            old = self._policy
            self._policy = ServePolicy(old._clock, self._memory, old.metrics, old._log)
            if self.remembers:
                self._policy.memories = {
                    name: Memory(restore(json.loads(json.dumps(asdict(memory.state)))))
                    for name, memory in old.memories.items()
                }
        return super().step(fleet)


@pytest.mark.parametrize(("every", "remembers"), [(1, True), (7, False)])
def test_replaced_policy_keeps_bounds_and_serves(every: int, remembers: bool) -> None:
    controller = Restarted(KNOBS, every, remembers=remembers)
    result = replayed(controller)

    assert result.timeline.target.min() >= 0
    assert result.timeline.target.max() <= 6
    assert result.unanswered == result.policy_errors == 0
    assert result.ttft_ok > 0.3


def test_a_restart_that_remembers_changes_no_decision(usual: Result) -> None:
    # Records that were written before are part of what is lost here, so it is the targets that are compared.
    replaced = replayed(Restarted(KNOBS, 61, remembers=True))

    assert usual.timeline.target.tolist() == replaced.timeline.target.tolist()
    assert usual.gpu_seconds == replaced.gpu_seconds


def test_without_variants_the_same_replay_gives_the_same_records(usual: Result) -> None:
    # Recorded before models had variants. The words of reasons and notes may change.
    recorded = json.loads((Path(__file__).parents[1] / "recorded" / "replay_records.json").read_text("utf-8"))

    assert [without_words(record) for record in usual.decisions] == recorded


def without_words(record: Mapping[str, Any]) -> dict[str, Any]:
    worded = ("reason", "counterfactual", "terms", "clamps", "notes", "ages_s", "mode", "seq", "model")
    terms = {term["name"]: term["replicas"] for term in record["terms"]}
    numbers = {name: value for name, value in record.items() if name not in worded}
    return {**numbers, "terms": terms, "fields": sorted(record)}


def test_records_have_each_change_in_replay_seconds(usual: Result) -> None:
    changes = [record for record in usual.decisions if record["kind"] == "change"]

    assert usual.changes <= len(changes) <= usual.changes + 2
    assert [record["at"] for record in changes] == sorted(record["at"] for record in changes)
    assert all(0 <= record["at"] <= usual.timeline.at_s[-1] + 2 for record in changes)
    assert all(record["reason"] for record in changes)
