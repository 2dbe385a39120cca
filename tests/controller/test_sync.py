import json
import logging
import zlib
from typing import Any, cast

import pytest

from serve_app.cluster.pending_pods import PendingPods
from serve_app.cluster.ray_resources import Node
from serve_app.controller.mailbox import ColdStarts, Learned, StartUp
from serve_app.controller.memory import Memory
from serve_app.controller.sync import Sync
from serve_app.learning.state import PolicyState
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.wire.documents import DECISIONS, KNOBS, LEARNED, NAMESPACE, STATUS, WARMED, put_document
from serve_app.wire.ingress_reports import publish_report, read_reports
from serve_app.wire.phases import publish_phase
from serve_app.wire.served_models import ServedApplication, ServedModel
from tests.stub_kv import StubKv, stored

START = 1_700_000_000.0
TIDE = "Engine-tide"


class Cluster:
    """What Ray and Kubernetes say of the cluster, and how often they were asked."""

    def __init__(self) -> None:
        self.free = [{"GPU": 0.0, "CPU": 4.0}] * 2
        """By node."""
        self.asked = 0
        self.enabled = False
        self.pods_read = 0

    def read_nodes(self) -> tuple[Node, ...]:
        self.asked += 1
        total = {"GPU": 4.0, "CPU": 4.0}
        return tuple(Node(total, free, f"node {index}") for index, free in enumerate(self.free))

    def read(self) -> str:
        self.pods_read += 1
        return "pod engine-1: 0/2 nodes are available"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def sync_of(cluster: Cluster) -> Sync:
    return Sync("shop", cluster.read_nodes, cast(PendingPods, cluster))


@pytest.fixture
def sync(kv: StubKv, cluster: Cluster) -> Sync:
    """Of an application that has said what it serves; its thread is not started."""
    serve()
    return sync_of(cluster)


@pytest.fixture(autouse=True)
def replicas(kv: StubKv) -> set[tuple[str, str, str]]:
    """Those that exist."""
    kv.replicas = {("shop", TIDE, replica) for replica in ("r1", "runs", "starts")}
    return kv.replicas


def serve(*, zygote: bool = True, **knobs: Any) -> None:
    """What an ingress replica writes."""
    model = ServedModel("tide", TIDE, Knobs(**knobs), {"GPU": 1.0})
    served = ServedApplication({TIDE: model}, IngressKnobs(), zygote=zygote)
    put_document(KNOBS, "shop", served.document(START))


def phase(replica: str, name: str, since: float = START, **durations_s: float) -> None:
    """What an engine replica writes."""
    document = {"phase": name, "since": since, "durations_s": durations_s, "warm_node": True}
    publish_phase("shop", TIDE, replica, json.dumps(document))


def left(kv: StubKv) -> set[str]:
    """The replicas of which there is a phase document."""
    prefix = f"phase/shop/{TIDE}/"
    return {key.decode().removeprefix(prefix) for _, key in kv.kept if key.startswith(prefix.encode())}


def written(kv: StubKv, kind: str) -> int:
    return kv.written.count(f"{kind}/shop")


def test_knobs_are_read_at_every_turn_and_unreadable_ones_ignored(sync: Sync) -> None:
    def knobs_after(turn: int) -> Knobs:
        sync.turn(START + 0.5 * turn)
        assert sync.inbox.served is not None
        return sync.inbox.served.models[TIDE].knobs

    assert knobs_after(0) == Knobs()
    serve(max_replicas=7)
    assert knobs_after(1) == Knobs(max_replicas=7)
    put_document(KNOBS, "shop", {"models": [{"name": "of another version"}]})
    assert knobs_after(2) == Knobs(max_replicas=7)


def test_nothing_is_written_before_the_ingress_publishes_its_models(kv: StubKv, cluster: Cluster) -> None:
    sync = sync_of(cluster)
    assert sync.inbox.learned is None

    sync.turn(START)

    assert (sync.inbox.learned, sync.inbox.served) == (Learned(), None)
    assert kv.written == []


def test_phases_of_settled_deployments_are_read_every_five_seconds(sync: Sync) -> None:
    sync.turn(START)
    phase("r1", "imports")
    sync.turn(START + 4.5)
    before = sync.inbox

    sync.turn(START + 5)

    assert set(sync.inbox.deployments[TIDE].phases) == {"r1"}
    assert before.deployments[TIDE].phases == {}  # a reader keeps the moment it has seen


def test_phases_of_scaling_deployment_are_read_every_turn(sync: Sync) -> None:
    sync.turn(START)
    sync.outbox.unsettled = {TIDE}

    for step, name in enumerate(("process", "imports", "weights_and_kv_cache"), start=1):
        phase("r1", name)
        sync.turn(START + 0.5 * step)
        assert sync.inbox.deployments[TIDE].phases["r1"]["phase"] == name


def test_a_start_is_remembered_after_its_replica_is_gone(sync: Sync) -> None:
    phase("r1", "ready", START, process=2.0, imports=8.0)
    sync.turn(START)
    phase("r1", "draining", START + 5)
    sync.turn(START + 5)

    cold_starts = sync.inbox.deployments[TIDE].cold_starts
    assert cold_starts.total_s == 10.0
    assert list(cold_starts.phases_s()) == ["process", "imports"]


def test_nodes_are_read_every_five_seconds_or_two_while_scaling(sync: Sync, cluster: Cluster) -> None:
    def asked(*at: float) -> int:
        before = cluster.asked
        for seconds in at:
            sync.turn(START + seconds)
        return cluster.asked - before

    assert (asked(0.0), asked(4.5), asked(5.0)) == (1, 0, 1)
    assert sync.inbox.deployments[TIDE].no_room == "no node has 1 GPU free (0 of 8 in the cluster)"

    sync.outbox.unsettled = {TIDE}
    cluster.free = [{"GPU": 4.0}, {}]
    assert (asked(6.5), asked(7.0)) == (0, 1)
    assert sync.inbox.deployments[TIDE].no_room == ""


@pytest.mark.parametrize(
    ("free", "warmed", "zygote", "warm_node"),
    [
        ([{"GPU": 1.0}, {}], [("node 0", "tide")], True, True),
        # Half of what a replica needs is free on each of two nodes: it has to wait for a third.
        ([{"GPU": 0.5}, {"GPU": 0.5}], [("node 0", "tide"), ("node 1", "tide")], True, False),
        ([{}, {}], [("node 0", "tide"), ("node 1", "tide")], True, False),
        ([{"GPU": 1.0}, {}], [("node 1", "tide"), ("node 0", "other")], True, False),
        ([{"GPU": 1.0}, {}], [], True, False),
        ([{"GPU": 1.0}, {}], None, True, False),
        # Written before the zygote was turned off.
        ([{"GPU": 1.0}, {}], [("node 0", "tide")], False, False),
    ],
)
def test_warm_node_needs_a_warm_zygote_and_room(
    sync: Sync,
    cluster: Cluster,
    free: list[dict[str, float]],
    warmed: list[tuple[str, str]] | None,
    zygote: bool,
    warm_node: bool,
) -> None:
    cluster.free = free
    serve(zygote=zygote)
    if warmed is not None:
        put_document(WARMED, "shop", warmed)

    sync.turn(START)

    assert sync.inbox.deployments[TIDE].warm_node is warm_node


@pytest.mark.parametrize(("enabled", "read"), [(True, [0, 1, 1, 1, 2]), (False, [0] * 5)])
def test_pending_pods_are_read_every_fifteen_seconds_while_scaling(
    sync: Sync, cluster: Cluster, enabled: bool, read: list[int]
) -> None:
    cluster.enabled = enabled
    counts = []
    for at in (0, 0.5, 1.0, 15.0, 15.5):
        sync.turn(START + at)
        counts.append(cluster.pods_read)
        sync.outbox.unsettled = {TIDE}

    assert counts == read
    assert sync.inbox.why_pods_wait == ("pod engine-1: 0/2 nodes are available" if enabled else "")


@pytest.mark.parametrize(("name", "start_up_s"), [("imports", None), ("ready", 8.0), ("draining", None)])
def test_documents_of_killed_replicas_are_removed_at_once(
    sync: Sync, kv: StubKv, name: str, start_up_s: float | None
) -> None:
    phase("killed", name, START, imports=8.0)
    phase("starts", "imports", START - 7200)

    sync.turn(START)

    assert set(sync.inbox.deployments[TIDE].phases) == left(kv) == {"starts"}
    assert sync.inbox.deployments[TIDE].cold_starts.total_s == start_up_s


def test_reason_of_a_failed_start_is_kept_for_an_hour(sync: Sync, kv: StubKv) -> None:
    for replica, since in (("late", START - 3599), ("early", START - 3601)):
        document = {"phase": "failed", "since": since, "durations_s": {}, "during": "imports", "reason": "?"}
        publish_phase("shop", TIDE, replica, json.dumps(document))

    sync.turn(START)

    assert left(kv) == {"late"}


def test_status_is_written_on_change_and_every_ten_seconds(sync: Sync, kv: StubKv) -> None:
    sync.turn(START)
    assert written(kv, STATUS) == 0  # the policy has said nothing

    sync.outbox.status = {"policy_errors": 0, "models": {}}
    sync.turn(START + 0.5)
    sync.outbox.status = {"policy_errors": 0, "models": {}}  # a new one, and the same
    sync.turn(START + 10.0)
    assert written(kv, STATUS) == 1
    assert stored(STATUS, "shop") == {"at": START + 0.5, "policy_errors": 0, "models": {}}

    sync.turn(START + 10.5)
    assert written(kv, STATUS) == 2
    assert stored(STATUS, "shop")["at"] == START + 10.5

    sync.outbox.status = {"policy_errors": 1, "models": {}}
    sync.turn(START + 11.0)
    assert written(kv, STATUS) == 3
    assert stored(STATUS, "shop")["policy_errors"] == 1


def test_only_new_decisions_are_written_at_the_next_turn(sync: Sync, kv: StubKv) -> None:
    sync.outbox.decisions, sync.outbox.decisions_seq = [{"seq": 1}], 1
    sync.turn(START)
    sync.turn(START + 0.5)
    assert written(kv, DECISIONS) == 1

    sync.outbox.decisions, sync.outbox.decisions_seq = [{"seq": 1}, {"seq": 2}], 2
    sync.turn(START + 1.0)

    assert written(kv, DECISIONS) == 2
    assert stored(DECISIONS, "shop") == [{"seq": 1}, {"seq": 2}]


def test_memories_and_starts_are_written_every_ten_seconds(sync: Sync, kv: StubKv) -> None:
    phase("r1", "ready", START, imports=8.0)
    state = PolicyState(learned_headroom=0.9)
    sync.outbox.memories = {TIDE: Memory(state, "a 7B", (("a 1B", PolicyState()),))}

    sync.turn(START)
    sync.turn(START + 9.5)
    assert written(kv, LEARNED) == 1
    assert stored(LEARNED, "shop") == {
        "states": {TIDE: json.loads(json.dumps(state.document()))},
        "identities": {TIDE: "a 7B"},
        "former": {TIDE: [["a 1B", json.loads(json.dumps(PolicyState().document()))]]},
        "cold_starts": {TIDE: [["r1", {"imports": 8.0}, True, ""]]},
    }

    sync.turn(START + 10)
    assert written(kv, LEARNED) == 2


def test_a_stopped_sync_writes_nothing(sync: Sync, kv: StubKv) -> None:
    sync.outbox.memories = {}
    sync.stop()

    sync.turn(START)

    assert kv.written == ["knobs/shop"]


def test_new_sync_reads_earlier_memories_and_starts(sync: Sync, cluster: Cluster) -> None:
    phase("r1", "ready", START, imports=8.0)
    former = PolicyState(learned_headroom=0.8, kv_cache_tokens=9e5)
    memory = Memory(PolicyState(learned_headroom=0.9), "a 7B", (("a 1B", former),))
    sync.outbox.memories = {TIDE: memory}
    sync.outbox.decisions, sync.outbox.decisions_seq = [{"seq": 41, "model": "tide"}], 41
    sync.turn(START)

    later = sync_of(cluster)
    phase("runs", "ready", START, imports=4.0)
    later.turn(START + 60)

    records = ({"seq": 41, "model": "tide"},)
    assert later.inbox.learned == Learned({TIDE: memory}, records)
    starts = ColdStarts((StartUp("r1", {"imports": 8.0}, True), StartUp("runs", {"imports": 4.0}, True)))
    assert later.inbox.deployments[TIDE].cold_starts == starts


def test_memories_of_an_earlier_version_are_read(sync: Sync) -> None:
    state, starts = PolicyState(learned_headroom=0.9), {TIDE: [["old", {"imports": 8.0}]]}
    put_document(LEARNED, "shop", {"states": {TIDE: state.document()}, "cold_starts": starts})

    sync.turn(START)

    assert sync.inbox.learned == Learned({TIDE: Memory(state)})

    found = sync.inbox.deployments[TIDE].cold_starts
    assert found == ColdStarts((StartUp("old", {"imports": 8.0}),))
    assert [found.on(warm_node=kind).total_s for kind in (True, False)] == [8.0, 8.0]


def test_nothing_is_written_before_memories_have_been_read(sync: Sync, kv: StubKv) -> None:
    """Or a policy would begin anew, and what it then writes would replace what there is to be read."""
    sync.outbox.decisions, sync.outbox.decisions_seq = [{"seq": 1}], 1
    kv.fails = RuntimeError("GCS is gone")
    sync.turn(START)
    assert (sync.inbox.learned, sync.inbox.served) == (None, None)

    kv.fails = None
    kv.written.clear()
    sync.turn(START + 0.5)

    assert sync.inbox.learned == Learned()
    assert sync.inbox.served is not None
    assert written(kv, DECISIONS) == 1


@pytest.mark.parametrize("kind", [KNOBS, LEARNED, DECISIONS, f"phase/shop/{TIDE}/r1"])
@pytest.mark.parametrize(
    "data", [b"no zlib stream", zlib.compress(b"{"), zlib.compress(b'{"of": "another version"}')]
)
def test_an_unreadable_document_is_logged_once_and_stops_no_other(
    sync: Sync, kv: StubKv, caplog: pytest.LogCaptureFixture, kind: str, data: bytes
) -> None:
    key = kind if "/" in kind else f"{kind}/shop"
    kv.kept[NAMESPACE, key.encode()] = data
    sync.outbox.status = {"policy_errors": 0, "models": {}}
    sync.outbox.memories = {}
    sync.outbox.unsettled = {TIDE}
    phase("starts", "imports")

    with caplog.at_level(logging.WARNING, "ray.serve"):
        for step in range(4):
            sync.outbox.decisions = [{"seq": step + 1}]
            sync.outbox.decisions_seq = step + 1
            sync.turn(START + 0.5 * step)

    assert [written(kv, each) for each in (DECISIONS, STATUS, LEARNED)] == [4, 1, 1]
    assert (sync.inbox.served is None) == (kind == KNOBS)
    assert [message for message in caplog.messages if key not in message] == []
    assert len(caplog.messages) == 1
    if kind != KNOBS:
        assert set(sync.inbox.deployments[TIDE].phases) == {"starts"}


def test_unreadable_nodes_stop_no_document(sync: Sync, cluster: Cluster, kv: StubKv) -> None:
    cluster.free = cast(Any, None)  # so that reading the nodes raises
    sync.outbox.unsettled = {TIDE}
    sync.outbox.status = {"policy_errors": 0, "models": {}}

    sync.turn(START)

    assert written(kv, STATUS) == 1


def test_a_failed_write_is_repeated(sync: Sync, kv: StubKv) -> None:
    sync.outbox.status = {"policy_errors": 0, "models": {}}
    sync.outbox.decisions, sync.outbox.decisions_seq = [{"seq": 1}], 1
    sync.outbox.memories = {}
    sync.turn(START - 0.5)
    kv.written.clear()
    kv.fails = RuntimeError("GCS is gone")
    sync.outbox.status = {"policy_errors": 1, "models": {}}
    sync.outbox.decisions_seq = 2
    sync.turn(START)

    kv.fails = None
    sync.turn(START + 0.5)

    assert [written(kv, kind) for kind in (STATUS, DECISIONS)] == [1, 1]


def test_ingress_reports_are_removed_a_minute_after_the_last(sync: Sync) -> None:
    publish_report("shop", "killed", {"Engine-tide:held_requests": 3.0}, START)
    sync.turn(START)
    publish_report("shop", "holds", {}, START + 59.5)
    sync.turn(START + 60)
    assert set(sync.inbox.ingress_reports) == {"killed", "holds"}
    assert sync.inbox.ingress_reports["killed"].values == {"Engine-tide:held_requests": 3.0}

    sync.turn(START + 60.5)

    assert set(sync.inbox.ingress_reports) == set(read_reports("shop")) == {"holds"}


def test_nodes_are_read_once_a_second_while_the_ingress_grows(sync: Sync, cluster: Cluster) -> None:
    sync.turn(START)
    assert (sync.inbox.nodes, cluster.asked) == (None, 1)

    sync.outbox.look_at_nodes = True
    for turn in range(4):
        sync.turn(START + 0.5 * turn)
    assert cluster.asked == 3
    assert sync.inbox.nodes == tuple(
        Node({"GPU": 4.0, "CPU": 4.0}, {"GPU": 0.0, "CPU": 4.0}, name) for name in ("node 0", "node 1")
    )

    sync.outbox.look_at_nodes = False
    sync.turn(START + 9)
    assert sync.inbox.nodes is None


def test_documents_of_a_removed_model_go_with_its_memory(sync: Sync, kv: StubKv) -> None:
    starts = {name: [["old", {"imports": 8.0}]] for name in (TIDE, "Engine-renamed", "Engine-forgotten")}
    put_document(LEARNED, "shop", {"states": {}, "cold_starts": starts})
    for name, since in (("ready", START), ("failed", START - 3601)):
        document = {"phase": name, "since": since, "durations_s": {}, "during": "imports", "reason": "?"}
        publish_phase("shop", "Engine-forgotten", name, json.dumps(document))
    sync.turn(START)
    assert not [key for _, key in kv.kept if b"Engine-forgotten" in key]

    sync.outbox.memories = {TIDE: Memory(), "Engine-renamed": Memory()}
    sync.turn(START + 1)
    sync.turn(START + 11)

    assert sync.inbox.deployments.keys() == {TIDE, "Engine-renamed"}
    assert stored(LEARNED, "shop")["cold_starts"].keys() == {TIDE, "Engine-renamed"}


@pytest.mark.parametrize("ahead_s", [-50.0, 50.0])
def test_drain_length_ignores_the_nodes_clock(sync: Sync, ahead_s: float) -> None:
    sync.turn(START)
    since = START + 4.5 + ahead_s
    document = {"phase": "draining", "since": since, "until": since + 30.0, "durations_s": {}}
    publish_phase("shop", TIDE, "runs", json.dumps(document))

    sync.turn(START + 5)

    until = sync.inbox.deployments[TIDE].phases["runs"]["until"]
    assert START + 30.0 <= until <= START + 35.0
