"""Models with variants share places with other models, as Ray calls the policy."""

from dataclasses import replace
from typing import Any

import pytest

from serve_app.controller.decided import Decided, Part, split
from serve_app.controller.document_exchange import Deployment
from serve_app.patches import ray
from serve_app.policy.decide import Decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.variant_decision import VariantNow
from serve_app.settings.knobs import IngressKnobs, Knobs, StartingValues
from serve_app.wire.resources import Node
from serve_app.wire.served_models import ServedModel, ServedVariant
from tests.controller.test_shared_fleet import document, started
from tests.policy.fake_application import KNOBS, Clock, FakeApplication, holding

CHEAP, DEAR = "Engine-v@cheap", "Engine-v@dear"


def variant(name: str, usd_per_hour: float) -> ServedVariant:
    return ServedVariant(
        name, f"Engine-v@{name}", {name: 1.0}, "", usd_per_hour,
        preemptible=False, min_replicas=0, max_replicas=10, assumed_speed=1.0,
    )  # fmt: skip


class Fleet(FakeApplication):
    """Model `v` with two variants, and models with one: all on one node of `places` of each kind."""

    def __init__(
        self,
        clock: Clock,
        models: dict[str, Knobs],
        *,
        at: dict[str, int],
        kinds: dict[str, str] | None = None,
        switch: bool = True,
        **places: float,
    ) -> None:
        both = (variant("cheap", 1.0), variant("dear", 3.0))
        super().__init__(
            clock, models, targets=at, ingress=IngressKnobs(max_replicas=1), variants={"v": both}
        )
        self.takes({"CPU": 1.0}, {"cheap": 1.0})
        served = self.mailbox.inbox.served
        assert served is not None
        changed = {
            name: replace(model, resources={(kinds or {}).get(model.name, "cheap"): 1.0})
            for name, model in served.models.items()
        }
        served = replace(served, models=changed, model_preemption=switch)
        self.mailbox.inbox = replace(self.mailbox.inbox, served=served)
        self.places, self.engines = places, served.engines()
        self.says: dict[str, Deployment] = {}
        for name in self.engines:
            self.say(name, *["ready"] * self.targets[name], age_s=100.0)

    def say(self, deployment: str, *phases: str, age_s: float = 0.0) -> None:
        """What the replicas of a deployment have written, whether they run or not."""
        since = self.clock.now - age_s
        found = {f"{deployment}-{n}": document(phase, since) for n, phase in enumerate(phases)}
        self.says[deployment] = started(found)
        self.mailbox.inbox = replace(
            self.mailbox.inbox, deployments={**self.mailbox.inbox.deployments, **self.says}
        )

    def go(self, seconds: float, **reports: dict[str, float]) -> dict[str, int]:
        """Decide for so long. Each replica with a document holds a place."""
        for _ in range(round(seconds / 0.5)):
            if self.mailbox.outbox.look_at_nodes:
                free = dict(self.places)
                for name, known in self.says.items():
                    for kind, amount in self.engines[name].resources.items():
                        free[kind] -= amount * len(known.phases)
                self.nodes(Node({**self.places, "CPU": 4.0}, {**free, "CPU": 3.0}, "n0"))
            self.reports(**reports)
            targets = self.tick()
        return targets

    def line(self, model: str) -> Any:
        return self.mailbox.outbox.status["models"][f"Engine-{model}"].get("line")


def test_variant_takes_the_place_of_an_idle_model(clock: Clock) -> None:
    app = Fleet(clock, {"a": KNOBS, "v": KNOBS}, at={"a": 1}, cheap=1.0, dear=0.0)
    app.go(10)

    targets = app.go(3, v=holding(2))

    assert (targets["Engine-a"], targets[CHEAP], targets[DEAR]) == (0, 1, 0)
    assert app.metrics.counted["handovers_total"] == [("a", "v")]
    assert app.line("v")["place"] == 1


def test_idle_variant_gives_its_place(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[tuple[str, str], frozenset[str]] = {}
    monkeypatch.setattr(ray, "_stop_first", named)
    app = Fleet(clock, {"b": KNOBS, "v": KNOBS}, at={CHEAP: 1}, cheap=1.0, dear=0.0)
    app.go(10)

    targets = app.go(3, b=holding(2))

    assert (targets["Engine-b"], targets[CHEAP], targets[DEAR]) == (1, 0, 0)
    assert named == {("tideserve", CHEAP): frozenset({f"{CHEAP}-0"})}
    gave = next(record for record in app.records("v") if record["kind"] == "change")
    assert (gave["binding"], gave["gives_to"], gave["new_target"]) == ("share", "b", 0)
    assert gave["variants"]["cheap"]["target"] == 0
    assert gave["signals"]["usd_per_hour"] == 0.0
    assert app.metrics.counted["handovers_total"] == [("v", "b")]


def test_waiting_variant_takes_no_place_given_to_another_model(clock: Clock) -> None:
    app = Fleet(clock, {"a": KNOBS, "b": KNOBS, "v": KNOBS}, at={"a": 1}, cheap=1.0, dear=0.0)
    app.go(10)
    app.go(3, b=holding(2))

    for _ in range(10):
        targets = app.go(0.5, b=holding(2), v=holding(2))
        assert (targets["Engine-a"], targets["Engine-b"], targets[CHEAP]) == (0, 1, 0)

    assert (app.line("b")["place"], app.line("v")["place"]) == (1, 2)


def test_model_has_one_place_in_the_line(clock: Clock) -> None:
    kept = KNOBS.model_copy(update={"min_replicas": 1})
    app = Fleet(clock, {"a": kept, "c": KNOBS, "v": KNOBS}, at={"a": 1}, cheap=1.0, dear=0.0)
    app.go(10)

    app.go(4, v=holding(24), c=holding(2))

    assert sorted((app.line("v")["place"], app.line("c")["place"])) == [1, 2]


def test_taker_is_not_dry_while_the_giver_drains(clock: Clock) -> None:
    app = Fleet(clock, {"a": KNOBS, "v": KNOBS}, at={"a": 1}, cheap=1.0, dear=0.0)
    app.go(10)
    app.go(3, v=holding(2))
    app.say("Engine-a", "draining")
    app.run("Engine-a", 0)

    for _ in range(16):
        targets = app.go(20, v=holding(2))
        assert (targets[CHEAP], targets[DEAR]) == (1, 0)

    app.say("Engine-a")
    assert app.go(2, v=holding(2))[CHEAP] == 1
    app.say(CHEAP, "ready")
    app.run(CHEAP, 1)
    assert app.go(2)[CHEAP] == 1


def test_the_place_of_another_model_teaches_no_wait_for_nodes(clock: Clock) -> None:
    app = Fleet(clock, {"a": KNOBS, "v": KNOBS}, at={"a": 1}, cheap=1.0, dear=0.0)
    app.go(10)
    app.go(3, v=holding(2))
    app.say("Engine-a", "draining")
    app.run("Engine-a", 0)
    app.go(20, v=holding(2))
    app.say("Engine-a")
    app.say(CHEAP, "loading")
    app.go(2, v=holding(2))

    memory = app.policy.memories["Engine-v"].state.mix.variants["cheap"]
    assert memory.placed == 1
    assert not memory.node_waits_s


def test_replica_keeps_its_place_after_recent_arrivals() -> None:
    """No request waits or runs, and the newest arrivals are too old for a claim."""
    served = variant("cheap", 1.0)
    numbers = {"cheap": {"capacity_rps": 2.0, "meets_targets": True}}
    decision = Decision(1, 1, "demand", "", "", signals={"arrivals_30s_rps": 1.2}, variants=numbers)
    model = ServedModel("v", "Engine-v", KNOBS, variants=(served,))
    now = VariantNow(served, Snapshot(target=1, ready=1), placed=1)
    decided = Decided(model, None, now.snapshot, decision, None, {CHEAP: 1}, CHEAP, {CHEAP: Part(None, now)})

    part = split(decided, {CHEAP: model}, ())[CHEAP]

    assert part.decision.signals["arrivals_30s_rps"] == 1.2


def test_start_of_a_variant_is_assumed_by_starting_values(clock: Clock) -> None:
    steps = dict.fromkeys(("step_base_s", "step_per_sequence_s", "step_per_prefill_token_s"), 1e-3)
    assumed = StartingValues(**steps, step_per_kv_token_s=1e-7, cold_start_s=(200.0, 300.0))
    slow = KNOBS.model_copy(update={"starting_values": assumed})
    app = Fleet(clock, {"a": KNOBS, "v": slow}, at={"a": 1}, cheap=1.0, dear=0.0)
    app.says |= {CHEAP: Deployment(), DEAR: Deployment()}
    app.say("Engine-a", "ready", age_s=100.0)
    app.go(10)
    app.go(3, v=holding(2))

    assert app.line("v")["eta_s"] > 200


def test_variants_of_one_model_take_nothing_from_each_other(clock: Clock) -> None:
    app = Fleet(clock, {"a": KNOBS, "v": KNOBS}, at={DEAR: 1}, cheap=0.0, dear=1.0)
    app.go(10)

    targets = app.go(20, v=holding(40))

    assert targets[DEAR] == 1
    assert "handovers_total" not in app.metrics.counted


def test_min_on_demand_is_kept_while_the_model_serves(clock: Clock) -> None:
    certain = KNOBS.model_copy(update={"min_replicas": 1, "min_on_demand": 1})
    app = Fleet(clock, {"b": KNOBS, "v": certain}, at={CHEAP: 1}, cheap=1.0, dear=0.0)
    app.go(10)

    assert app.go(20, b=holding(2))[CHEAP] == 1
    assert app.line("b") == {"place": 1, "eta_s": None}


class EndingNode(Fleet):
    """Model `v` has one cheap replica, with requests so far. Its node `n1` ends in 120 s."""

    def __init__(self, clock: Clock, *models: str) -> None:
        kinds = {"a": "dear"}
        knobs = dict.fromkeys(models, KNOBS)
        super().__init__(clock, knobs, at={"a": 2, CHEAP: 1}, kinds=kinds, cheap=1.0, dear=2.0)
        served = self.mailbox.inbox.served
        assert served is not None
        model = served.models["Engine-v"]
        model = replace(model, variants=(replace(model.variants[0], preemptible=True), model.variants[1]))
        served = replace(served, models={**served.models, "Engine-v": model})
        self.mailbox.inbox = replace(self.mailbox.inbox, served=served)
        self.arrived = 0.0
        self.serve(10)
        ends = document("ready", clock.now - 100) | {"notice_s": 120.0, "node": "n1"}
        self.says[CHEAP] = started({f"{CHEAP}-0": ends})
        self.say("Engine-a", "ready", "ready", age_s=110.0)

    def serve(self, seconds: float) -> dict[str, int]:
        for _ in range(round(seconds / 0.5)):
            self.arrived += 2.0
            targets = self.go(0.5, v={"arrivals_total": self.arrived})
        return targets

    def nodes(self, *nodes: Node) -> None:
        """The cheap places are on a node of their own."""
        both = [
            Node(*({kind: n for kind, n in of.items() if (kind == "cheap") == cheap} for of in amounts), name)
            for amounts in [(node.total, node.free) for node in nodes]
            for name, cheap in (("n0", False), ("n1", True))
        ]
        super().nodes(*both)


def test_replacement_of_an_ending_replica_takes_an_idle_place(clock: Clock) -> None:
    targets = EndingNode(clock, "a", "v").serve(3)

    assert (targets["Engine-a"], targets[CHEAP], targets[DEAR]) == (1, 1, 1)


def test_place_on_an_ending_node_is_not_given(clock: Clock) -> None:
    """Ray starts no replica there."""
    app = EndingNode(clock, "a", "b", "v")
    app.go(30)

    targets = app.go(3, b=holding(2))

    assert targets[CHEAP] == 1
    assert app.line("b") == {"place": 1, "eta_s": None}


def test_with_room_for_all_targets_are_those_of_the_mix(clock: Clock) -> None:
    seen = []
    for switch in (False, True):
        clock.now = Clock().now
        models = {"a": KNOBS, "b": KNOBS, "v": KNOBS}
        app = Fleet(clock, models, at={"a": 1, CHEAP: 1}, switch=switch, cheap=20.0, dear=20.0)
        app.go(10)
        app.go(30, b=holding(20), v=holding(60))
        seen.append((app.records("a"), app.records("b"), app.records("v"), app.targets))

    assert seen[0] == seen[1]


def test_variant_in_advise_keeps_its_replica(clock: Clock) -> None:
    advise = KNOBS.model_copy(update={"mode": "advise"})
    app = Fleet(clock, {"b": KNOBS, "v": advise}, at={CHEAP: 1}, cheap=1.0, dear=0.0)
    app.go(10)

    assert app.go(20, b=holding(2))[CHEAP] == 1
