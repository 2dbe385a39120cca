"""The replicas of a model's variants in one ingress: one set, different speeds, and nodes that end."""

import asyncio
from typing import Any

from ray.serve._private.common import DeploymentStatus, DeploymentStatusTrigger, ReplicaState
from ray.serve.schema import DeploymentStatusOverview

from serve_app.cluster.serve_status import ServeStatus
from serve_app.engine.node_watch import NodeWatch
from serve_app.ingress.admission import Admission
from serve_app.ingress.cold_start_progress import StoredState
from serve_app.ingress.ray_router import Wakes
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings
from tests.ingress.fakes import FakeHandle, FakeProgress, request
from tests.ingress.fleet import WHOLE, CountingEngine, Fleet, reading, without_comments
from tests.ingress.test_replica_set import LIMIT, where

DEPLOYMENTS = {"Engine-a": ["Engine-a@spot", "Engine-a@on-demand"]}


def names(among: ReplicaSet) -> list[str]:
    return sorted(replica.replica_id for replica in among.listed())


def test_each_variant_has_a_list_of_its_own() -> None:
    among = ReplicaSet()
    among.update(where("a", "b"), "spot")
    among.update(where("c"), "on-demand")
    assert names(among) == ["a", "b", "c"]
    assert {replica.replica_id: replica.variant for replica in among.listed()}["c"] == "on-demand"

    among.update({}, "spot")
    assert names(among) == ["c"]


def spent(among: ReplicaSet, clock: list[float], pace_s: dict[str, float], prompts: int) -> dict[str, int]:
    """Return how many of the prompts each variant got, if a token takes `pace_s` there."""
    got = dict.fromkeys(pace_s, 0)
    for _ in range(prompts):
        slot = among.take(LIMIT, 1000, 1.0)
        assert slot is not None
        got[slot.replica.variant] += 1
        clock[0] += 1000 * pace_s[slot.replica.variant]
        among.note_first_byte(slot)
        among.release(slot)
    return got


def test_a_prompt_goes_where_it_is_prefilled_first() -> None:
    clock = [100.0]
    among = ReplicaSet(clock=lambda: clock[0])
    among.update(where("a"), "fast")
    among.update(where("b"), "slow")
    for replica in among.listed():
        among.choice.of(replica.variant).step_tokens = 8192
    # The paces are learned from replicas that are busy in turn.
    for variant, name in (("fast", "b"), ("slow", "a")):
        among.keep_away(next(one for one in among.listed() if one.replica_id == name), "busy")
        spent(among, clock, {"fast": 1e-5, "slow": 1e-4}, 20)
        among.welcome(next(one for one in among.listed() if one.replica_id == name))
        assert among.choice.of(variant).pace.other

    slots = [among.take(LIMIT, 1000, 1.0) for _ in range(11)]
    picked = [slot.replica.variant for slot in slots if slot is not None]

    assert picked.count("slow") in (1, 2), "ten times the speed takes about ten times the load"


def test_a_replica_whose_node_ends_gets_no_request() -> None:
    among = ReplicaSet()
    among.update(where("a", "b"))
    leaving = next(one for one in among.listed() if one.replica_id == "a")
    among.note_end(leaving, 30.0)
    assert {slot.replica.replica_id for slot in (among.take(LIMIT) for _ in range(4)) if slot} == {"b"}

    among.update(where("a", "b"))  # Ray may go on listing it
    assert len(among) == 1
    among.note_end(leaving, None)  # the cloud keeps the node
    assert len(among) == 2


def test_a_replica_serves_until_shortly_before_its_nodes_end() -> None:
    among = ReplicaSet(clock=lambda: 7.0)
    among.update(where("a"))
    (leaving,) = among.listed()
    among.note_end(leaving, 120.0)
    assert (len(among), leaving.draining) == (1, False)

    among.note_end(leaving, 30.0)
    assert (len(among), leaving.draining, leaving.ends_at) == (0, True, 37.0)


def test_queued_requests_hear_of_a_replica_whose_node_ends() -> None:
    among = ReplicaSet(clock=lambda: 7.0)
    heard: list[int] = []
    among.update(where("a", "b"))
    among.on_change.append(lambda: heard.append(len(among)))
    among.awaited = True
    first, second = among.listed()
    among.note_end(first, 30.0)
    assert heard == [1], "another that was unreachable may have a place now"

    among.note_end(second, 30.0)
    assert (heard, among.lost_at) == ([1, 0], 7.0)


async def test_streams_leave_a_node_before_it_ends(fleet: Fleet) -> None:
    fleet.knobs["drain_move_after_s"] = None
    first, second = CountingEngine(until=25), CountingEngine()
    await fleet.start(first)
    async with reading(fleet, request(wants_stream=True)) as answer:
        await first.reached.wait()
        await fleet.start(second)
        fleet.known.note_end(fleet.replicas[0], 0.0)
        first.go_on(1)
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 1)


async def test_short_streams_leave_first_and_all_by_half_of_the_notice() -> None:
    now = [0.0]
    known = ReplicaSet(clock=lambda: now[0])
    admission = Admission(ModelSettings(name="a"), known, FakeHandle(), Knobs, FakeProgress())
    admission.replicas.update(where("a"))
    (replica,) = admission.replicas.listed()
    admission.replicas.note_end(replica, 30.0)

    def leaving(remaining: float) -> bool:
        return admission.should_move_streams(replica, lambda: remaining)

    assert (leaving(0.0), leaving(0.2), leaving(1.0)) == (True, False, False)
    now[0] = 3.5
    assert (leaving(0.2), leaving(1.0)) == (True, False)
    now[0] = 15.5
    assert leaving(1.0)


async def test_requests_fail_only_if_no_variant_can_start() -> None:
    failed: list[bool] = []
    handles: list[Any] = [FakeHandle(holds=True), FakeHandle(holds=True)]
    wakes = Wakes("a", handles, lambda: True, lambda: failed.append(True))
    wakes.start()
    wakes.note_failed(0)
    assert not failed
    wakes.note_failed(1)
    wakes.stop()

    assert failed == [True]


async def test_an_earlier_failure_of_a_variant_refuses_no_request() -> None:
    failed: list[bool] = []
    handles: list[Any] = [FakeHandle(holds=True), FakeHandle(holds=True)]
    wakes = Wakes("a", handles, lambda: False, lambda: failed.append(True))
    wakes.note_failed(0)
    wakes.start()
    wakes.note_failed(1)
    wakes.stop()

    assert not failed


def overview(status: str, **states: int) -> DeploymentStatusOverview:
    return DeploymentStatusOverview(
        status=DeploymentStatus(status),
        status_trigger=DeploymentStatusTrigger.CONFIG_UPDATE_COMPLETED,
        replica_states={ReplicaState(state): count for state, count in states.items()},
        message="",
    )


def test_a_model_has_failed_only_if_each_variant_has() -> None:
    found = {
        "Engine-a@spot": overview("DEPLOY_FAILED", STARTING=1),
        "Engine-a@on-demand": overview("HEALTHY", RUNNING=2),
    }
    merged = ServeStatus(found).by_model(DEPLOYMENTS).deployments["Engine-a"]

    assert merged.status == "HEALTHY"
    assert merged.replica_states == {ReplicaState.STARTING: 1, ReplicaState.RUNNING: 2}


def test_phases_of_all_variants_belong_to_the_model() -> None:
    phases = {"Engine-a@spot": {"r1": {"phase": "ready"}}, "Engine-a@on-demand": {"r2": {"phase": "imports"}}}
    state = StoredState(phases=phases).by_model(DEPLOYMENTS)

    assert state.phases == {"Engine-a": {"r1": {"phase": "ready"}, "r2": {"phase": "imports"}}}


async def test_a_replica_hears_once_of_its_nodes_end() -> None:
    told: list[float] = []
    ends = {"other": 5.0}
    watch = NodeWatch("mine", told.append, lambda: ends, lambda: 100.0)
    await asyncio.gather(watch.look())
    assert (watch.ends_in_s, told) == (None, [])

    ends["mine"] = 130.0
    await watch.look()
    await watch.look()
    assert (watch.ends_in_s, told) == (30.0, [30.0])
