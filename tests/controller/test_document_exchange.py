import json
import logging
import threading
import zlib
from dataclasses import asdict
from typing import cast

import pytest

from serve_app.cluster.pending_pods import PendingPods
from serve_app.controller.cold_starts import ColdStarts, StartUp
from serve_app.controller.document_exchange import DocumentExchange, Learned
from serve_app.policy.state import Memory, PolicyState
from serve_app.settings.knobs import Knobs
from serve_app.wire.batches import BatchBacklog, backlogs_document
from serve_app.wire.documents import (
    BATCHES,
    DECISIONS,
    KNOBS,
    LEARNED,
    NAMESPACE,
    STATUS,
    WARMED,
    put_document,
)
from serve_app.wire.ingress_reports import publish_report, read_reports
from serve_app.wire.phases import publish_phase
from serve_app.wire.resources import ComingNode, Node
from tests.controller.fake_cluster import START, TIDE, FakeCluster, left, phase, serve, written
from tests.stub_engine import LIMIT_S
from tests.stub_kv import StubKv, stored

ABOUT = {"warm_node": True, "identity": ""}
"""What each phase document has of its replica."""


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def exchange_of(cluster: FakeCluster) -> DocumentExchange:
    return DocumentExchange("shop", cluster.read_nodes, cast(PendingPods, cluster))


@pytest.fixture
def exchange(kv: StubKv, cluster: FakeCluster) -> DocumentExchange:
    """Of an application that has three replicas and has published its models; its thread is not started."""
    kv.replicas = {("shop", TIDE, replica) for replica in ("r1", "runs", "starts")}
    serve()
    return exchange_of(cluster)


def test_knobs_are_read_at_every_turn_and_unreadable_ones_ignored(exchange: DocumentExchange) -> None:
    def knobs_after(turn: int) -> Knobs:
        exchange.turn(START + 0.5 * turn)
        assert exchange.inbox.served is not None
        return exchange.inbox.served.models[TIDE].knobs

    assert knobs_after(0) == Knobs()
    serve(max_replicas=7)
    assert knobs_after(1) == Knobs(max_replicas=7)
    put_document(KNOBS, "shop", {"models": [{"name": "of another version"}]})
    assert knobs_after(2) == Knobs(max_replicas=7)


def test_backlog_of_batches_is_read_while_its_runner_writes(exchange: DocumentExchange) -> None:
    left = BatchBacklog(1, 30, lines_per_s=2.0, due=((30, START + 3600),))
    put_document(BATCHES, "shop", backlogs_document({"tide": left}, START))

    exchange.turn(START)
    assert exchange.inbox.batches == {"tide": left}
    exchange.turn(START + 59)
    assert exchange.inbox.batches == {"tide": left}
    exchange.turn(START + 61)  # its runner is gone
    assert exchange.inbox.batches == {}


def test_phases_are_read_every_five_seconds_or_every_turn_while_scaling(exchange: DocumentExchange) -> None:
    exchange.turn(START)
    phase("r1", "process")
    exchange.turn(START + 4.5)
    before = exchange.inbox
    exchange.turn(START + 5)
    assert set(exchange.inbox.deployments[TIDE].phases) == {"r1"}
    assert before.deployments[TIDE].phases == {}  # a reader keeps the moment it has seen

    exchange.outbox.unsettled = {TIDE}
    phase("r1", "imports")
    exchange.turn(START + 5.5)
    assert exchange.inbox.deployments[TIDE].phases["r1"]["phase"] == "imports"


def test_nodes_are_read_every_five_seconds_or_two_while_scaling(
    exchange: DocumentExchange, cluster: FakeCluster
) -> None:
    def asked(*at: float) -> int:
        before = cluster.asked
        for seconds in at:
            exchange.turn(START + seconds)
        return cluster.asked - before

    assert (asked(0.0), asked(4.5), asked(5.0)) == (1, 0, 1)
    assert exchange.inbox.deployments[TIDE].no_room == "no node has 1 GPU free (0 of 8 in the cluster)"

    exchange.outbox.unsettled = {TIDE}
    cluster.free = [{"GPU": 4.0}, {}]
    assert (asked(6.5), asked(7.0)) == (0, 1)
    assert exchange.inbox.deployments[TIDE].no_room == ""


@pytest.mark.parametrize(
    ("free", "warmed", "zygote", "warm_node", "large"),
    [
        ([{"GPU": 1.0}, {}], [("node 0", "tide")], True, True, True),
        # Half of what a replica needs is free on each of two nodes: it has to wait for a third.
        ([{"GPU": 0.5}, {"GPU": 0.5}], [("node 0", "tide"), ("node 1", "tide")], True, False, True),
        ([{}, {}], [("node 0", "tide"), ("node 1", "tide")], True, False, True),
        ([{"GPU": 1.0}, {}], [("node 1", "tide"), ("node 0", "other")], True, False, True),
        ([{"GPU": 1.0}, {}], [], True, False, False),
        ([{"GPU": 1.0}, {}], None, True, False, False),
        # Written before the zygote was turned off.
        ([{"GPU": 1.0}, {}], [("node 0", "tide")], False, False, False),
    ],
)
def test_warm_node_needs_a_warm_zygote_and_room(
    exchange: DocumentExchange,
    cluster: FakeCluster,
    free: list[dict[str, float]],
    warmed: list[tuple[str, str]] | None,
    zygote: bool,
    warm_node: bool,
    large: bool,
) -> None:
    cluster.free = free
    serve(zygote=zygote)
    if warmed is not None:
        put_document(WARMED, "shop", warmed)

    exchange.turn(START)

    known = exchange.inbox.deployments[TIDE]
    assert (known.warm_node, known.warmed) == (warm_node, large)


@pytest.mark.parametrize(("enabled", "read"), [(True, [0, 1, 1, 1, 2]), (False, [0] * 5)])
def test_pending_pods_are_read_every_fifteen_seconds_while_scaling(
    exchange: DocumentExchange, cluster: FakeCluster, enabled: bool, read: list[int]
) -> None:
    cluster.enabled = enabled
    counts = []
    for at in (0, 0.5, 1.0, 15.0, 15.5):
        exchange.turn(START + at)
        counts.append(cluster.pods_read)
        exchange.outbox.unsettled = {TIDE}

    assert counts == read
    assert exchange.inbox.why_pods_wait == ("pod engine-1: 0/2 nodes are available" if enabled else "")


def test_nodes_that_come_are_known_while_scaling(exchange: DocumentExchange, cluster: FakeCluster) -> None:
    cluster.enabled = True
    cluster.coming = (ComingNode("pod", {"GPU": 1.0}, START - 8.0),)
    exchange.turn(START)
    for unsettled, coming in (((TIDE,), cluster.coming), ((), ())):
        exchange.outbox.unsettled = unsettled
        exchange.turn(START + 0.5)
        assert exchange.inbox.coming == coming


def test_documents_of_ended_replicas_are_removed(exchange: DocumentExchange, kv: StubKv) -> None:
    for name in ("imports", "ready", "draining"):
        phase(f"killed in {name}", name, imports=8.0)
    phase("starts", "imports", START - 7200)
    phase("failed within the hour", "failed", START - 3599)
    phase("failed before", "failed", START - 3601)

    exchange.turn(START)

    assert left(kv) == {"starts", "failed within the hour"}
    assert set(exchange.inbox.deployments[TIDE].phases) == {
        "starts",
        "failed within the hour",
        "failed before",
    }
    assert exchange.inbox.deployments[TIDE].cold_starts.total_s == 8.0


def test_lost_replicas_are_found_with_their_causes(exchange: DocumentExchange) -> None:
    hung, died = "its engine has taken no step for 40 s", "its engine core has died"
    phase("a", "ready", more={"node": "node 0", "cause": "engine_hung", "trouble": hung})
    phase("b", "ready", more={"node": "gone", "cause": "engine_died", "trouble": died})
    phase("c", "ready", more={"node": "node 1"})
    phase("d", "ready", more={"node": "0123456789"})
    phase("e", "ready")
    phase("runs", "ready", more={"node": "node 0", "cause": "engine_hung", "trouble": hung})
    phase("f", "draining", more={"node": "node 0", "cause": "engine_died", "trouble": died})
    for name in ("imports", "draining", "failed"):
        phase(f"not lost in {name}", name, more={"node": "node 0"})

    exchange.turn(START)
    exchange.turn(START + 10)

    ended = "its process ended, or did not answer Ray"
    assert sorted((loss.cause, loss.reason) for loss in exchange.losses) == [
        ("engine_died", f"Replica b was lost (engine_died): {died}."),
        ("engine_died", f"Replica f was lost (engine_died): {died}."),
        ("engine_hung", f"Replica a was lost (engine_hung): {hung}."),
        ("node_lost", "Replica d was lost (node_lost): its node 01234567 has left the cluster."),
        ("process_ended", f"Replica c was lost (process_ended): {ended}."),
        ("process_ended", f"Replica e was lost (process_ended): {ended}."),
    ]
    assert {loss.deployment for loss in exchange.losses} == {TIDE}


def test_a_stopped_exchange_leaves_losses_to_the_next(
    exchange: DocumentExchange, cluster: FakeCluster
) -> None:
    """Its policy is gone, and counts nothing."""

    def read_nodes() -> tuple[Node, ...]:
        stopped.stop()
        return cluster.read_nodes()

    stopped = DocumentExchange("shop", read_nodes, cast(PendingPods, cluster))
    phase("a", "ready")

    stopped.turn(START)
    exchange.turn(START + 1)

    assert (len(stopped.losses), len(exchange.losses)) == (0, 1)


def test_status_is_written_on_change_and_every_ten_seconds(exchange: DocumentExchange, kv: StubKv) -> None:
    exchange.turn(START)
    assert written(kv, STATUS) == 0  # the policy has said nothing

    exchange.outbox.status = {"policy_errors": 0, "models": {}}
    exchange.turn(START + 0.5)
    exchange.outbox.status = {"policy_errors": 0, "models": {}}  # a new one, and the same
    exchange.turn(START + 10.0)
    assert written(kv, STATUS) == 1
    assert stored(STATUS, "shop") == {"at": START + 0.5, "policy_errors": 0, "models": {}}

    exchange.turn(START + 10.5)
    exchange.outbox.status = {"policy_errors": 1, "models": {}}
    exchange.turn(START + 11.0)
    assert written(kv, STATUS) == 3
    assert stored(STATUS, "shop") == {"at": START + 11.0, "policy_errors": 1, "models": {}}


def test_memories_and_starts_are_written_every_ten_seconds(exchange: DocumentExchange, kv: StubKv) -> None:
    phase("r1", "ready", START, imports=8.0)
    state = PolicyState(learned_headroom=0.9)
    exchange.outbox.memories = {TIDE: Memory(state, "a 7B", (("a 1B", PolicyState()),))}

    exchange.turn(START)
    exchange.turn(START + 9.5)
    assert written(kv, LEARNED) == 1
    assert stored(LEARNED, "shop") == {
        "memories": {
            TIDE: {
                "state": json.loads(json.dumps(asdict(state))),
                "identity": "a 7B",
                "former": [["a 1B", json.loads(json.dumps(asdict(PolicyState())))]],
            }
        },
        "cold_starts": {TIDE: [["r1", {"imports": 8.0}, True, ""]]},
    }

    exchange.turn(START + 10)
    assert written(kv, LEARNED) == 2


def test_new_exchange_reads_earlier_memories_and_starts(
    exchange: DocumentExchange, cluster: FakeCluster
) -> None:
    phase("r1", "ready", START, imports=8.0)
    former = PolicyState(learned_headroom=0.8, kv_cache_tokens=9e5)
    memory = Memory(PolicyState(learned_headroom=0.9), "a 7B", (("a 1B", former),))
    exchange.outbox.memories = {TIDE: memory}
    exchange.outbox.decisions, exchange.outbox.decisions_seq = [{"seq": 41, "model": "tide"}], 41
    exchange.turn(START)

    later = exchange_of(cluster)
    phase("runs", "ready", START, imports=4.0)
    later.turn(START + 60)

    records = ({"seq": 41, "model": "tide"},)
    assert later.inbox.learned == Learned({TIDE: memory}, records)
    starts = ColdStarts(
        tuple(StartUp(*each, True, "") for each in (("r1", {"imports": 8.0}), ("runs", {"imports": 4.0})))
    )
    assert later.inbox.deployments[TIDE].cold_starts == starts


def test_nothing_is_written_before_memories_have_been_read(exchange: DocumentExchange, kv: StubKv) -> None:
    """Or a policy would begin anew, and what it then writes would replace what there is to be read."""
    exchange.outbox.decisions, exchange.outbox.decisions_seq = [{"seq": 1}], 1
    kv.fails = RuntimeError("GCS is gone")
    exchange.turn(START)
    assert (exchange.inbox.learned, exchange.inbox.served) == (None, None)

    kv.fails = None
    kv.written.clear()
    exchange.turn(START + 0.5)

    assert exchange.inbox.learned == Learned()
    assert exchange.inbox.served is not None
    assert written(kv, DECISIONS) == 1


@pytest.mark.parametrize("kind", [KNOBS, LEARNED, DECISIONS, f"phase/shop/{TIDE}/r1"])
@pytest.mark.parametrize(
    "data", [b"no zlib stream", zlib.compress(b"{"), zlib.compress(b'{"of": "another version"}')]
)
def test_an_unreadable_document_is_logged_once_and_stops_no_other(
    exchange: DocumentExchange, kv: StubKv, caplog: pytest.LogCaptureFixture, kind: str, data: bytes
) -> None:
    key = kind if "/" in kind else f"{kind}/shop"
    kv.kept[NAMESPACE, key.encode()] = data
    exchange.outbox.status = {"policy_errors": 0, "models": {}}
    exchange.outbox.memories = {}
    exchange.outbox.unsettled = {TIDE}
    phase("starts", "imports")

    with caplog.at_level(logging.WARNING, "ray.serve"):
        for step in range(4):
            exchange.outbox.decisions = [{"seq": step + 1}]
            exchange.outbox.decisions_seq = step + 1
            exchange.turn(START + 0.5 * step)

    assert [written(kv, each) for each in (DECISIONS, STATUS, LEARNED)] == [4, 1, 1]
    assert (exchange.inbox.served is None) == (kind == KNOBS)
    assert [message for message in caplog.messages if key not in message] == []
    assert len(caplog.messages) == 1
    if kind != KNOBS:
        assert set(exchange.inbox.deployments[TIDE].phases) == {"starts"}


def test_a_failed_write_is_repeated_until_it_succeeds(exchange: DocumentExchange, kv: StubKv) -> None:
    exchange.outbox.status = {"policy_errors": 0, "models": {}}
    exchange.outbox.decisions, exchange.outbox.decisions_seq = [{"seq": 1}], 1
    exchange.outbox.memories = {}
    exchange.turn(START - 0.5)
    kv.written.clear()
    kv.fails = RuntimeError("GCS is gone")
    exchange.outbox.status = {"policy_errors": 1, "models": {}}
    exchange.outbox.decisions_seq = 2
    exchange.turn(START)

    kv.fails = None
    exchange.turn(START + 0.5)
    exchange.turn(START + 1.0)  # nothing is new

    assert [written(kv, kind) for kind in (STATUS, DECISIONS)] == [1, 1]


def test_ingress_reports_are_removed_a_minute_after_the_last(exchange: DocumentExchange) -> None:
    publish_report("shop", "killed", {"Engine-tide:held_requests": 3.0}, START - 90.0)  # its clock is behind
    exchange.turn(START)
    publish_report("shop", "holds", {}, START + 59.5)
    exchange.turn(START + 60)
    assert set(exchange.inbox.ingress_reports) == {"killed", "holds"}
    assert exchange.inbox.ingress_reports["killed"].values == {"Engine-tide:held_requests": 3.0}

    exchange.turn(START + 60.5)

    assert set(exchange.inbox.ingress_reports) == set(read_reports("shop")) == {"holds"}


def test_nodes_are_read_once_a_second_while_the_ingress_grows(
    exchange: DocumentExchange, cluster: FakeCluster
) -> None:
    exchange.turn(START)
    assert (exchange.inbox.nodes, cluster.asked) == (None, 1)

    exchange.outbox.look_at_nodes = True
    for turn in range(4):
        exchange.turn(START + 0.5 * turn)
    assert cluster.asked == 3
    assert exchange.inbox.nodes == tuple(
        Node({"GPU": 4.0, "CPU": 4.0}, {"GPU": 0.0, "CPU": 4.0}, name) for name in ("node 0", "node 1")
    )

    exchange.outbox.look_at_nodes = False
    exchange.turn(START + 9)
    assert exchange.inbox.nodes is None


def test_documents_of_a_removed_model_go_with_its_memory(exchange: DocumentExchange, kv: StubKv) -> None:
    old = ["old", {"imports": 8.0}, True, ""]
    starts = {name: [old] for name in (TIDE, "Engine-renamed", "Engine-forgotten")}
    put_document(LEARNED, "shop", {"memories": {}, "cold_starts": starts})
    for name, since in (("ready", START), ("failed", START - 3601)):
        document = {"phase": name, "since": since, "durations_s": {}, **ABOUT}
        document |= {"during": "imports", "reason": "?"}
        publish_phase("shop", "Engine-forgotten", name, json.dumps(document))
    exchange.turn(START)
    assert not [key for _, key in kv.kept if b"Engine-forgotten" in key]

    exchange.outbox.memories = {TIDE: Memory(), "Engine-renamed": Memory()}
    exchange.turn(START + 1)
    exchange.turn(START + 11)

    assert exchange.inbox.deployments.keys() == {TIDE, "Engine-renamed"}
    assert stored(LEARNED, "shop")["cold_starts"].keys() == {TIDE, "Engine-renamed"}


@pytest.mark.parametrize("ahead_s", [-50.0, 50.0])
def test_drain_length_ignores_the_nodes_clock(exchange: DocumentExchange, ahead_s: float) -> None:
    exchange.turn(START)
    since = START + 4.5 + ahead_s
    document = {"phase": "draining", "since": since, "until": since + 30.0, "durations_s": {}, **ABOUT}
    publish_phase("shop", TIDE, "runs", json.dumps(document))

    exchange.turn(START + 5)

    until = exchange.inbox.deployments[TIDE].phases["runs"]["until"]
    assert START + 30.0 <= until <= START + 35.0


def test_a_lost_store_is_logged_once_per_failure(
    exchange: DocumentExchange, kv: StubKv, caplog: pytest.LogCaptureFixture
) -> None:
    gone, full = RuntimeError("GCS is gone"), RuntimeError("GCS is back, and has no room")
    with caplog.at_level(logging.ERROR, "ray.serve"):
        for number, kv.fails in enumerate((gone, gone, gone, None, gone, full, full)):
            exchange.turn(START + 0.5 * number)

    assert caplog.messages == ["autoscaling of shop: could not read or write documents"] * 3
    assert caplog.records[0].exc_info is not None


def test_thread_has_a_turn_at_once_and_after_send_until_stopped(kv: StubKv) -> None:
    ended = threading.Semaphore(0)

    class Counted(DocumentExchange):
        def turn(self, now: float) -> None:
            super().turn(now)
            ended.release()

    serve()
    # Only `send` begins another turn, so that the test knows how many there were.
    exchange = Counted("shop", tuple, poll_s=LIMIT_S)
    exchange.start()
    assert ended.acquire(timeout=LIMIT_S)
    assert exchange.inbox.served is not None

    exchange.outbox.decisions, exchange.outbox.decisions_seq = [{"seq": 1}], 1
    exchange.send()
    assert ended.acquire(timeout=LIMIT_S)
    assert stored(DECISIONS, "shop") == [{"seq": 1}]

    exchange.stop()
    assert exchange.join(LIMIT_S)
    assert not ended.acquire(timeout=0.0)
    exchange.outbox.memories = {}
    exchange.turn(START)
    assert written(kv, LEARNED) == 0


def test_a_hurrying_policy_has_documents_read_at_once(kv: StubKv) -> None:
    ended = threading.Semaphore(0)

    class Counted(DocumentExchange):
        def turn(self, now: float) -> None:
            super().turn(now)
            ended.release()

    exchange = Counted("shop", tuple, poll_s=LIMIT_S)
    exchange.start()
    assert ended.acquire(timeout=LIMIT_S)

    exchange.hurry()

    assert ended.acquire(timeout=LIMIT_S)
    exchange.stop()
    assert exchange.join(LIMIT_S)
