"""The policy on a model with variants: one decision, one record, and a target for each deployment."""

from dataclasses import replace
from typing import Any

import pytest

from serve_app.controller.cold_starts import ColdStarts, StartUp
from serve_app.controller.document_exchange import Deployment
from serve_app.controller.serve_policy import ServePolicy
from serve_app.policy.decide import Decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs
from serve_app.wire.phases import NODE_LOST, PROCESS_ENDED, Loss
from serve_app.wire.served_models import ServedModel, ServedVariant
from tests.policy.fake_application import KNOBS, Clock, FakeApplication, holding

SPOT, ON_DEMAND = "Engine-a@spot", "Engine-a@on-demand"


def variant(name: str, usd_per_hour: float, **changed: Any) -> ServedVariant:
    given = {
        "resources": {},
        "identity": "",
        "preemptible": name == "spot",
        "min_replicas": 0,
        "max_replicas": 10,
        "assumed_speed": 1.0,
        **changed,
    }
    return ServedVariant(name, f"Engine-a@{name}", usd_per_hour=usd_per_hour, **given)


class Application(FakeApplication):
    """A model of two variants. Replicas that are asked for run at once, unless their variant has no nodes."""

    def __init__(
        self, clock: Clock, *, knobs: Knobs = KNOBS, policy: type[ServePolicy] = ServePolicy
    ) -> None:
        both = (variant("spot", 1.2), variant("on-demand", 3.7))
        super().__init__(clock, {"a": knobs}, variants={"a": both}, policy=policy)
        self.without_nodes: set[str] = set()

    def turn(self, seconds: float = 0.5, **ingress: Any) -> tuple[int, int]:
        """Return the targets of spot and on-demand after a decision."""
        self.reports(**ingress)
        targets = self.tick(seconds)
        for name in (SPOT, ON_DEMAND):
            if name not in self.without_nodes:
                self.run(name, targets[name])
        return targets[SPOT], targets[ON_DEMAND]


def test_a_burst_starts_the_cheap_variant_in_one_step(clock: Clock) -> None:
    app = Application(clock)
    app.turn()
    seen = [app.turn(0.1, a=holding(24, oldest_s=0.1 * tick)) for tick in range(12)]

    assert {spot for spot, _ in seen} == {0, 4}, "three replicas, and a spare one because nodes may be taken"
    assert {on_demand for _, on_demand in seen} == {0}


def test_one_record_has_the_mix_and_its_price(clock: Clock) -> None:
    app = Application(clock)
    app.turn()
    for tick in range(12):
        app.turn(0.1, a=holding(24, oldest_s=0.1 * tick))
    (change,) = [record for record in app.records("a") if record["kind"] == "change"]

    assert (change["old_target"], change["new_target"]) == (0, 4)
    assert change["variants"]["spot"]["target"] == 4
    assert change["variants"]["spot"]["usd_per_hour"] == 4.8
    assert any(note.startswith("mix: 4 spot, the cheapest for") for note in change["notes"])


def test_an_idle_model_goes_to_zero(clock: Clock) -> None:
    app = Application(clock)
    app.turn()
    for tick in range(12):
        app.turn(0.1, a=holding(24, oldest_s=0.1 * tick))
    for _ in range(200):
        last = app.turn()

    assert last == (0, 0)


def test_lost_nodes_bring_the_next_variant_at_once(clock: Clock) -> None:
    app = Application(clock, knobs=KNOBS.model_copy(update={"min_replicas": 3}))
    for _ in range(4):
        before = app.turn()
    app.without_nodes = {SPOT}
    app.run(SPOT, 0)
    app.mailbox.losses.extend(Loss("Engine-a@spot", f"{SPOT}-{n}", NODE_LOST, "?") for n in range(before[0]))

    assert before == (4, 0)
    assert app.turn() == (0, 3)


@pytest.mark.parametrize(("notice_s", "kept"), [(30.0, 0), (120.0, 3)])
def test_ending_replicas_are_replaced_and_serve_while_they_can(
    clock: Clock, notice_s: float, kept: int
) -> None:
    app = Application(clock, knobs=KNOBS.model_copy(update={"min_replicas": 3}))
    for _ in range(4):
        app.turn()
    document = {"phase": "ready", "since": clock.now, "notice_s": notice_s}
    phases = {f"{SPOT}-{n}": document for n in range(4)}
    deployments = {**app.mailbox.inbox.deployments, SPOT: Deployment(phases=phases)}
    app.mailbox.inbox = replace(app.mailbox.inbox, deployments=deployments)
    app.without_nodes = {SPOT}

    assert app.turn() == (kept, 3)


def test_a_deploy_is_no_end_of_a_node(clock: Clock) -> None:
    app = Application(clock, knobs=KNOBS.model_copy(update={"min_replicas": 3}))
    for _ in range(4):
        app.turn()
    app.mailbox.losses.append(Loss(SPOT, "never-in-service", PROCESS_ENDED, "?"))

    assert app.turn() == (4, 0)
    assert not app.policy.memories["Engine-a"].state.mix.variants["spot"].ends


def test_one_error_now_and_one_later_keep_the_memory(clock: Clock) -> None:
    app = Application(clock, knobs=KNOBS.model_copy(update={"min_replicas": 3}))
    app.turn()
    mix = app.policy.memories["Engine-a"].state.mix
    inbox = app.mailbox.inbox
    for _ in range(2):
        broken = {SPOT: Deployment(phases={"r": {}})}  # a phase document without a phase
        app.mailbox.inbox = replace(inbox, deployments=broken)
        app.turn()
        app.mailbox.inbox = inbox
        for _ in range(30):
            app.turn()

    assert app.metrics.errors == 2
    assert app.policy.memories["Engine-a"].state.mix.variants["spot"].since == mix.variants["spot"].since


def test_at_zero_the_start_and_its_phases_are_of_one_variant(clock: Clock) -> None:
    both = (variant("on-demand", 3.7), variant("spot", 1.2))
    app = FakeApplication(clock, {"a": KNOBS}, variants={"a": both})
    for name, start_s in ((SPOT, 4.0), (ON_DEMAND, 90.0)):
        starts = ColdStarts((StartUp("r", {"all": start_s}, warm_node=False, identity=""),))
        deployments = {**app.mailbox.inbox.deployments, name: Deployment(cold_starts=starts)}
        app.mailbox.inbox = replace(app.mailbox.inbox, deployments=deployments)
    app.tick()

    status = app.mailbox.outbox.status["models"]["Engine-a"]
    assert status["phases_s"] == {"all": status["cold_start_s"]}


def test_a_new_identity_is_noted_in_the_record(clock: Clock) -> None:
    app = Application(clock)
    app.turn()
    served = app.mailbox.inbox.served
    assert served is not None
    memory = app.policy.memories["Engine-a"]
    app.policy.memories["Engine-a"] = replace(memory, identity="before")
    model = replace(served.models["Engine-a"], identity="after")
    app.mailbox.inbox = replace(app.mailbox.inbox, served=replace(served, models={"Engine-a": model}))
    app.turn(12.0)

    assert any(note.startswith("The model is now 'after'.") for note in app.records("a")[-1]["notes"])


def test_an_exchange_of_variants_is_a_change(clock: Clock) -> None:
    app = Application(clock, knobs=KNOBS.model_copy(update={"min_replicas": 3, "min_on_demand": 1}))
    for _ in range(4):
        app.turn()
    app.without_nodes = {SPOT}
    app.run(SPOT, 0)
    app.mailbox.losses.extend(Loss(SPOT, f"{SPOT}-{n}", NODE_LOST, "?") for n in range(3))
    app.turn()
    mixes = [
        {name: each["target"] for name, each in record["variants"].items()}
        for record in app.records("a")
        if record["kind"] == "change"
    ]

    assert mixes[-1] == {"spot": 0, "on-demand": 3}


class Counting(ServePolicy):
    """Counts its decisions."""

    decisions = 0

    def decide(
        self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
    ) -> tuple[Decision, PolicyState]:
        self.decisions += 1
        return super().decide(model, snapshot, state, now)


def test_a_variant_at_zero_leaves_decisions_half_a_second_apart(clock: Clock) -> None:
    app = Application(clock, knobs=KNOBS.model_copy(update={"min_replicas": 1}), policy=Counting)
    assert isinstance(app.policy, Counting)
    for _ in range(4):
        assert app.turn()[1] == 0
    before = app.policy.decisions
    for _ in range(10):
        app.turn(0.1, a=holding(1))

    assert app.policy.decisions - before in (1, 2)


def test_advise_moves_nothing(clock: Clock) -> None:
    app = Application(clock, knobs=KNOBS.model_copy(update={"mode": "advise"}))
    app.turn()

    assert {app.turn(0.2, a=holding(24)) for _ in range(20)} == {(0, 0)}


def test_min_on_demand_keeps_certain_replicas(clock: Clock) -> None:
    app = Application(clock, knobs=KNOBS.model_copy(update={"min_replicas": 3, "min_on_demand": 1}))
    for _ in range(4):
        last = app.turn()

    assert last == (3, 1)
