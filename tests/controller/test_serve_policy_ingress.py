"""The ingress's own replicas, as the policy has them under Ray's application state."""

import pytest

from serve_app.controller.document_exchange import Deployment
from serve_app.settings.knobs import IngressKnobs
from serve_app.settings.tree import INGRESS
from serve_app.wire.resources import Node
from tests.policy.fake_application import KNOBS, Clock, FakeApplication, holding


def test_ingress_scales_on_its_open_requests(clock: Clock) -> None:
    few = IngressKnobs(min_replicas=1, max_replicas=5, target_ongoing_requests=100, downscale_delay_s=10)
    app = FakeApplication(clock, {"a": KNOBS}, ingress=few)
    app.reports(ongoing=350)

    assert app.tick()[INGRESS] == 4

    app.run(INGRESS, 4)
    for _ in range(30):
        app.reports(ongoing=50)
        app.tick()
    assert app.targets[INGRESS] == 1


def test_requests_queued_at_a_draining_ingress_replica_get_engines(clock: Clock) -> None:
    """Ray tells the policy of running replicas alone."""
    app = FakeApplication(clock, {"a": KNOBS})
    app.reports()
    app.tick()
    app.holds_while_draining("i-drains", a=holding(24))

    assert app.tick()["Engine-a"] == 3


def test_requests_queued_at_a_draining_ingress_replica_keep_a_replica(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS}, targets={"a": 1})
    for _ in range(200):
        app.reports()
        app.holds_while_draining("i-drains", a=holding(1))
        app.tick()

    assert app.target("a") == 1


def test_report_of_a_draining_ingress_replica_replaces_no_silent_one(clock: Clock) -> None:
    """Idle is what is known to be idle."""
    app = FakeApplication(clock, {"a": KNOBS}, targets={"a": 1, INGRESS: 2})
    for _ in range(200):
        app.reports()
        app.silence(INGRESS, 1)
        app.holds_while_draining("i-drains", a={})
        app.tick()

    assert app.target("a") == 1


BUSY = IngressKnobs(min_replicas=1, max_replicas=4, target_ongoing_requests=100, downscale_delay_s=10)


@pytest.mark.parametrize(
    ("free_cpus", "running", "ingresses"), [(1.5, 1, 4), (1.0, 1, 3), (0.4, 1, 1), (1.5, 0, 2), (1.0, 0, 1)]
)
def test_ingress_takes_no_room_that_an_engine_needs(
    clock: Clock, free_cpus: float, running: int, ingresses: int
) -> None:
    """350 streams want four ingress replicas of half a CPU; a model at zero must find its CPU at any time."""
    app = FakeApplication(clock, {"a": KNOBS, "b": KNOBS}, targets={"a": 1, "b": running}, ingress=BUSY)
    app.takes({"CPU": 0.5}, {"CPU": 1.0})
    app.nodes(Node({"CPU": 4.0}, {"CPU": free_cpus}))
    app.reports(ongoing=350)
    app.engine("a", running_requests=8, ongoing_requests=8)
    app.tick()

    assert app.targets[INGRESS] == ingresses


@pytest.mark.parametrize(("phase", "ingresses"), [("imports", 3), ("failed", 2), ("draining", 2)])
def test_a_starting_engine_needs_no_further_room(clock: Clock, phase: str, ingresses: int) -> None:
    """One that has failed, or drains, is not the one that is awaited."""
    app = FakeApplication(clock, {"a": KNOBS}, targets={"a": 1}, ingress=BUSY)
    app.takes({"CPU": 0.5}, {"CPU": 0.5})
    app.nodes(Node({"CPU": 4.0}, {"CPU": 1.0}))
    app.run("Engine-a", 0)
    document = {"phase": phase, "since": clock.now, "durations_s": {}, "until": clock.now + 600}
    app.startup("a", Deployment({"a-1": document}))
    app.reports(ongoing=350, a=holding(1))
    app.tick()

    assert app.targets["Engine-a"] == 1
    assert app.targets[INGRESS] == ingresses


def test_ingress_with_its_own_nodes_may_ask_for_more(clock: Clock) -> None:
    """As the chart has it: a replica that finds no place is what makes the cluster add a node."""
    app = FakeApplication(clock, {"a": KNOBS}, ingress=BUSY)
    app.takes({"CPU": 0.5, "ingress:replicas": 1.0}, {"GPU": 1.0, "l4:replicas": 1.0})
    app.nodes(Node({"CPU": 2.0, "ingress:replicas": 1000.0}, {"CPU": 0.1, "ingress:replicas": 999.0}))
    app.reports(ongoing=350)

    assert app.tick()[INGRESS] == 4


def test_ingress_waits_until_the_nodes_are_read(clock: Clock) -> None:
    app = FakeApplication(clock, {"a": KNOBS}, ingress=BUSY)
    app.takes({"CPU": 0.5}, {"CPU": 1.0})
    app.reports(ongoing=50)
    app.tick()
    assert not app.mailbox.outbox.look_at_nodes

    app.reports(ongoing=350)
    assert app.tick()[INGRESS] == 1
    assert app.mailbox.outbox.look_at_nodes
