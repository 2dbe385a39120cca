"""Models that share places, as Ray calls the policy: who gets a place, who gives one, and who is told."""

from dataclasses import replace
from typing import Any

import pytest

from serve_app.controller.cold_starts import ColdStarts, StartUp
from serve_app.controller.document_exchange import Deployment
from serve_app.patches import ray
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.wire.resources import ComingNode, Node
from tests.policy.fake_application import KNOBS, Clock, FakeApplication, engine_name, holding

START_S = 4.0
ENGINE = {"GPU": 1.0}


def sharing(
    clock: Clock, models: dict[str, Knobs], *, places: int = 1, switch: bool = True
) -> FakeApplication:
    """Models on one node with `places`; `a` has been ready for 100 s in as many as it may have."""
    app = FakeApplication(clock, models, targets={"a": places}, ingress=IngressKnobs(max_replicas=1))
    app.takes({"CPU": 1.0}, ENGINE)
    served = app.mailbox.inbox.served
    assert served is not None
    app.mailbox.inbox = replace(app.mailbox.inbox, served=replace(served, model_preemption=switch))
    for model in models:
        app.startup(model, started())
    app.startup("a", started({f"Engine-a-{n}": document("ready", clock.now - 100) for n in range(places)}))
    return app


def document(phase: str, since: float) -> dict[str, Any]:
    return {"phase": phase, "since": since, "durations_s": {}, "node": "n0", "warm_node": False}


def started(phases: dict[str, Any] | None = None) -> Deployment:
    return Deployment(
        phases or {}, ColdStarts((StartUp("r", {"all": START_S}, warm_node=False, identity=""),))
    )


def node(free: float, places: float = 1.0) -> Node:
    return Node({"GPU": places, "CPU": 4.0}, {"GPU": free, "CPU": 3.0}, "n0")


def make_version(app: FakeApplication, model: str, of: str, **given: Any) -> None:
    """Serve `model` as a new version of model `of`."""
    served = app.mailbox.inbox.served
    assert served is not None
    new = replace(served.models[f"Engine-{model}"], version_of=f"Engine-{of}", **given)
    served = replace(served, models={**served.models, new.deployment: new})
    app.mailbox.inbox = replace(app.mailbox.inbox, served=served)


def run(app: FakeApplication, seconds: float, *nodes: Node, **reports: dict[str, float]) -> dict[str, int]:
    """Decide for so long; the nodes are read if the policy asks for them."""
    for _ in range(round(seconds / 0.5)):
        if app.mailbox.outbox.look_at_nodes:
            app.nodes(*nodes)
        app.reports(**reports)
        targets = app.tick()
    return targets


def test_idle_model_gives_its_place_to_a_model_with_queued_requests(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS, "b": KNOBS})
    assert run(app, 10, node(0))["Engine-a"] == 1
    assert not app.mailbox.outbox.look_at_nodes

    targets = run(app, 2, node(0), b=holding(2))

    assert (targets["Engine-a"], targets["Engine-b"]) == (0, 1)
    gave = next(record for record in app.records("a") if record["kind"] == "change")
    assert gave["binding"] == "share"
    assert gave["gives_to"] == "b"
    assert gave["reason"].startswith("share: b waits; a has been idle for 1")
    assert gave["counterfactual"].startswith("a gets a place again when its requests wait")
    assert app.metrics.counted["handovers_total"] == [("a", "b")]
    line = app.mailbox.outbox.status["models"]["Engine-b"]["line"]
    assert line["place"] == 1
    assert 0 < line["eta_s"] <= START_S + 5


def test_the_named_replica_is_the_one_that_stops(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[tuple[str, str], frozenset[str]] = {}
    monkeypatch.setattr(ray, "_stop_first", named)
    app = sharing(clock, {"a": KNOBS, "b": KNOBS}, places=2)
    phases = {"Engine-a-0": "n1", "Engine-a-1": "n0"}
    documents = {name: document("ready", clock.now - 100) | {"node": at} for name, at in phases.items()}
    app.startup("a", started(documents))
    small = Node({"GPU": 0.5, "CPU": 4.0}, {"CPU": 3.0}, "n1")

    run(app, 10, small, node(0, 1.5))
    targets = run(app, 2, small, node(0, 1.5), b=holding(2))

    assert targets["Engine-a"] == 1
    assert named == {("tideserve", "Engine-a"): frozenset({"Engine-a-1"})}


def test_no_second_replica_drains_until_the_first_has_gone(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS, "b": KNOBS}, places=2)
    ready = {f"Engine-a-{number}": document("ready", clock.now - 100 * (1 + number)) for number in range(2)}
    app.startup("a", started(ready))
    run(app, 10, node(0, 2))
    assert run(app, 1, node(0, 2), b=holding(2))["Engine-a"] == 1

    app.run("Engine-a", 1)
    assert run(app, 10, node(0, 2), b=holding(2))["Engine-a"] == 1  # its document is still of a ready replica

    kept = {"Engine-a-0": document("ready", clock.now - 100)}
    app.startup("a", started(kept | {"Engine-a-1": document("draining", clock.now)}))
    assert run(app, 20, node(0, 2), b=holding(2))["Engine-a"] == 1

    app.startup("a", started(kept))  # the new replica has the place, and has not said so
    assert run(app, 10, node(0, 2), b=holding(2))["Engine-a"] == 1


def test_replica_that_holds_a_place_unreported_takes_no_other(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS, "b": KNOBS})
    run(app, 10, node(1, 2))
    assert run(app, 1, node(1, 2), b=holding(2))["Engine-b"] == 1

    targets = run(app, 2, node(0, 2), b=holding(2))  # the replica of b has the second place

    assert targets["Engine-a"] == 1
    assert "line" not in app.mailbox.outbox.status["models"]["Engine-b"]


def test_replica_that_got_a_place_after_a_long_wait_takes_no_other(clock: Clock) -> None:
    kept = KNOBS.model_copy(update={"min_replicas": 1})
    app = sharing(clock, {"a": kept, "b": KNOBS, "c": KNOBS})
    run(app, 20, node(0), b=holding(2))  # no model may give a place

    app.knobs("a", min_replicas=0)
    places = node(0), Node({"GPU": 1.0, "CPU": 4.0}, {"CPU": 4.0}, "n1")  # Ray has placed the replica of b
    assert run(app, 10, *places, b=holding(2))["Engine-a"] == 1

    assert run(app, 20, *places, b=holding(2))["Engine-a"] == 0  # the other place is not of b


def test_place_of_another_application_counts_for_no_model(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS.model_copy(update={"min_replicas": 1}), "b": KNOBS})
    run(app, 20, node(0, 2), b=holding(2))
    app.knobs("a", min_replicas=0)

    assert run(app, 1, node(0, 2), b=holding(2))["Engine-a"] == 0


def test_only_the_first_in_line_asks_ray_for_a_replica(clock: Clock) -> None:
    app = sharing(clock, dict.fromkeys(("a", "b", "c"), KNOBS))
    run(app, 10, node(0))
    for model in ("b", "c"):
        app.queue_in_ray(model, 1.0)  # Ray would start a replica for each
    targets = []
    for _ in range(6):
        run(app, 0.5, node(0), b=holding(2), c=holding(2))
        targets.append((app.target("a"), app.target("b"), app.target("c")))

    assert targets[-4:] == [(0, 1, 0)] * 4


def test_start_on_a_full_warm_node_counts_as_warm(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS, "b": KNOBS})
    starts = ColdStarts(tuple(StartUp(str(s), {"all": s}, warm_node=s < 9, identity="") for s in (4.0, 70.0)))
    ready = {"Engine-a-0": document("ready", clock.now - 100)}
    app.startup("a", replace(started(ready), cold_starts=starts, warmed=True))
    app.startup("b", replace(started(), cold_starts=starts, warmed=True))
    run(app, 10, node(0))

    targets = run(app, 2, node(0), b=holding(2))

    assert (targets["Engine-a"], targets["Engine-b"]) == (0, 1)
    assert app.mailbox.outbox.status["models"]["Engine-b"]["line"]["eta_s"] <= 4 + 5


def test_model_that_cannot_start_takes_a_place_seldom(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS, "b": KNOBS.model_copy(update={"min_replicas": 1})})
    failed = document("failed", clock.now) | {"during": "weights", "reason": "no such file"}
    app.startup("b", started({"Engine-b-0": failed}))

    assert run(app, 4 * START_S - 1, node(0), b=holding(2))["Engine-a"] == 1
    assert run(app, 3, node(0), b=holding(2))["Engine-a"] == 0


def test_minimum_and_advise_keep_their_replicas(clock: Clock) -> None:
    for kept in ({"min_replicas": 1}, {"mode": "advise"}):
        clock.now = Clock().now
        app = sharing(clock, {"a": KNOBS.model_copy(update=kept), "b": KNOBS})
        run(app, 10, node(0))
        assert run(app, 20, node(0), b=holding(2))["Engine-a"] == 1
        line = app.mailbox.outbox.status["models"]["Engine-b"]["line"]
        assert line == {"place": 1, "eta_s": None}


def test_background_requests_take_no_place(clock: Clock) -> None:
    wakes = KNOBS.model_copy(update={"background_wakes": True})
    app = sharing(clock, {"a": KNOBS, "b": wakes})
    run(app, 10, node(0))
    waiting = {"background_held_requests": 2, "background_held_bytes": 99}

    targets = run(app, 20, node(0), b=waiting)

    assert (targets["Engine-a"], targets["Engine-b"]) == (1, 1)


def test_new_version_keeps_no_place_without_requests(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS, "b": KNOBS})
    make_version(app, "a", "b", share=0.05)
    run(app, 10, node(0))

    targets = run(app, 2, node(0), b=holding(2))

    assert (targets["Engine-a"], targets["Engine-b"]) == (0, 1)


def test_new_version_takes_a_place_for_its_share_alone(clock: Clock) -> None:
    for given, taken in (({"share": 0.05}, True), ({"shadow": 0.01}, False)):
        clock.now = Clock().now
        app = sharing(clock, dict.fromkeys(("a", "old", "new"), KNOBS))
        app.run("Engine-old", 1)
        app.targets["Engine-old"] = 1
        make_version(app, "new", "old", **given)
        app.startup("old", started({"Engine-old-0": document("ready", clock.now)}))
        assert run(app, 20, node(0, 2))["Engine-a"] == 1  # no request comes

        for _ in range(8):
            app.nodes(node(0, 2))
            app.reports()
            app.engine("old", running_requests=2.0)
            targets = app.tick()

        assert (targets["Engine-a"], targets["Engine-old"]) == (int(not taken), 1)


def test_without_the_switch_no_model_gives_way(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS, "b": KNOBS}, switch=False)
    run(app, 10, node(0))

    assert run(app, 20, node(0), b=holding(2))["Engine-a"] == 1
    assert not app.mailbox.outbox.look_at_nodes


def test_with_room_for_all_records_are_those_without_the_switch(clock: Clock) -> None:
    records = []
    for switch in (False, True):
        clock.now = Clock().now
        app = sharing(clock, {"a": KNOBS, "b": KNOBS}, switch=switch)
        run(app, 10, node(7, 8))
        run(app, 30, node(7, 8), b=holding(20), a=holding(30))
        records.append((app.records("a"), app.records("b"), app.targets))

    assert records[0] == records[1]


def test_model_gets_its_place_back_when_its_requests_wait(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS, "b": KNOBS})
    run(app, 10, node(0))
    run(app, 2, node(0), b=holding(2))
    app.run("Engine-a", 0)
    app.startup("a", started())
    app.run("Engine-b", 1)
    app.startup("b", started({"Engine-b-0": document("ready", clock.now)}))
    run(app, 4, node(0))

    targets = run(app, 2, node(0), a=holding(2))

    assert (targets["Engine-a"], targets["Engine-b"]) == (1, 0)
    assert engine_name("b") == "Engine-b"


def test_idle_model_gives_its_place_after_the_clock_was_set_back(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS, "b": KNOBS})
    app.startup("a", started({"Engine-a-0": document("ready", clock.now + 3 * 3600)}))
    run(app, 10, node(0))
    run(app, 2, node(0), b=holding(2))

    targets = run(app, 8, node(0), b=holding(2))

    assert (targets["Engine-a"], targets["Engine-b"]) == (0, 1)


def test_model_waits_for_a_node_that_comes(clock: Clock) -> None:
    app = sharing(clock, {"a": KNOBS.model_copy(update={"min_replicas": 1}), "b": KNOBS})
    run(app, 10, node(0))
    coming = (ComingNode("pod", {"GPU": 1.0}, clock.now - 100.0),)
    app.mailbox.inbox = replace(app.mailbox.inbox, coming=coming)

    run(app, 2, node(0), b=holding(2))

    line = app.mailbox.outbox.status["models"]["Engine-b"]["line"]
    assert line["place"] == 1
    assert 15 <= line["eta_s"] <= 25  # the rest of 120 s, and the start
