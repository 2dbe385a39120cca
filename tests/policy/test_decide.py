from typing import Any

import pytest

from serve_app.policy.reports import Snapshot
from serve_app.settings.knobs import Knobs, Schedule
from tests.policy.build import PolicyLoop, engine, ingress, snapshot

KNOBS = Knobs(
    min_replicas=0,
    max_replicas=10,
    queue_target_per_replica=8,
    headroom=0,
    upscale_delay_s=5,
    downscale_delay_s=30,
    downscale_to_zero_delay_s=120,
    forecast=False,
)


def knobs(**changed: Any) -> Knobs:
    return KNOBS.model_copy(update=changed)


def held(count: int, oldest_s: float = 2.0, **rest: Any) -> Snapshot:
    """A model at zero with `count` short requests held."""
    ages = {"oldest_held_s": oldest_s, "newest_held_s": oldest_s}
    front = ingress(held_requests=count, held_bytes=200.0 * count, **ages)
    return snapshot(at={"i0": front}, **rest)


def queued(waiting: float, replicas: int = 1, **rest: Any) -> Snapshot:
    """A fleet of idle replicas, with so many short requests waiting at the first of them."""
    first = engine(waiting_requests=waiting, waiting_tokens=10 * waiting)
    return snapshot(first, *[engine()] * (replicas - 1), **rest)


# Up.


def test_burst_on_cold_model_is_answered_in_one_step() -> None:
    decision = PolicyLoop(KNOBS).decide(held(24))

    assert decision.target == 3
    assert decision.binding == "queue"
    assert decision.reason == (
        "queue: 24 requests are waiting. One replica may have a queue of 8 requests, "
        "so 3 replicas are needed."
    )


def test_reason_demand_names_the_requests_that_wake_a_model() -> None:
    loop = PolicyLoop(KNOBS)
    loop.decide(snapshot(at={"i": ingress()}), 0.1)

    decision = loop.decide(
        snapshot(at={"i": ingress(held_requests=1, oldest_held_s=1, arrivals_total=1)}), 0.1
    )

    assert (decision.target, decision.binding) == (1, "demand")
    assert "1 request is waiting at zero replicas." in decision.reason


@pytest.mark.parametrize(
    ("ages_s", "target"),
    [
        ([(0.19, 0.19)], 0),
        ([(0.9, 0.1)], 0),
        ([(0.9, 0.2)], 1),  # no request for 200 ms
        ([(1.0, 0.0)], 1),  # the oldest has waited for a second
        ([(0.6, 0.5), (0.3, 0.1)], 0),  # the other ingress replica still gets requests
    ],
)
def test_scale_up_from_zero_waits_for_a_burst_to_arrive(
    ages_s: list[tuple[float, float]], target: int
) -> None:
    fronts = {
        f"i{number}": ingress(held_requests=3, oldest_held_s=oldest_s, newest_held_s=newest_s)
        for number, (oldest_s, newest_s) in enumerate(ages_s)
    }
    loop = PolicyLoop(KNOBS)
    # A busy node's late report is read several times. It says nothing new about the burst.
    decisions = [loop.decide(snapshot(at={**fronts, "idle": ingress()}), 0.1) for _ in range(3)]

    assert {decision.target for decision in decisions} == {target}
    assert decisions[0].binding == ("queue" if target else "delay")


def test_burst_that_needs_every_replica_is_not_waited_for() -> None:
    assert PolicyLoop(KNOBS).decide(held(500, oldest_s=0.0)).target == 10


def test_more_requests_while_the_first_replicas_start_ask_for_more() -> None:
    loop = PolicyLoop(KNOBS)
    loop.decide(held(24))

    assert loop.decide(held(40, target=3, ready=0)).target == 5


def test_backlog_asks_once_for_replicas() -> None:
    loop = PolicyLoop(KNOBS)
    loop.decide_for(60, held(24, target=3, ready=0))

    up = loop.decide_for(4, queued(20, target=3))

    assert up.target == 3
    # Nor do more that pile up before the others are; a queue that stands before all three does.
    assert loop.decide_for(10, queued(40, target=3)).target == 3
    assert loop.decide_for(10, queued(40, replicas=3)).target == 5


def test_queue_asks_only_after_the_upscale_delay() -> None:
    loop = PolicyLoop(KNOBS)
    loop.decide(queued(0))

    assert [loop.decide(queued(20)).target for _ in range(7)] == [1, 1, 1, 1, 1, 3, 3]
    assert PolicyLoop(knobs(upscale_delay_s=0.0)).decide(queued(20)).target == 3


def test_queue_that_clears_within_the_delay_asks_for_nothing() -> None:
    loop = PolicyLoop(KNOBS)

    targets = {loop.decide(queued(20 if second % 5 else 0)).target for second in range(60)}

    assert targets == {1}


# Down.


def loaded(rps: float, loop: PolicyLoop, replicas: int, seconds: int, **rest: Any) -> Any:
    """`seconds` of so many arrivals a second, which leave no trace in the engines."""
    for _ in range(seconds):
        total = getattr(loop, "total", 0.0) + rps
        loop.total = total  # type: ignore[attr-defined]
        front = ingress(arrivals_total=total, arrived_bytes_total=4000 * total)
        decision = loop.decide(snapshot(*[engine(**rest)] * replicas, at={"i0": front}))
    return decision


def test_scale_down_waits_for_the_scale_down_window() -> None:
    loop = PolicyLoop(KNOBS)
    loaded(9.0, loop, 4, 120)
    before = [loaded(2.0, loop, 4, 1).target for _ in range(95)]

    # 60 s until the longer rate has forgotten the nine a second, 30 more of delay; three replicas of load
    # before that, and down by what the rate needs at each moment.
    assert before[:29] == [4 if target == 4 else 3 for target in before[:29]]
    assert before[-1] == 1
    assert before == sorted(before, reverse=True)


def test_no_scale_down_after_a_reset_before_the_longer_delay() -> None:
    loop = PolicyLoop(KNOBS)
    busy = snapshot(*[engine(running_requests=1)] * 4)

    decision = loop.decide_for(119, busy)
    assert (decision.target, decision.wanted, decision.binding) == (4, 1, "delay")

    assert loop.decide_for(3, busy).target == 1
    # Once the load has been observed for long enough, the shorter delay counts.
    assert loop.decide_for(29, snapshot(*[engine(waiting_requests=9)] * 4)).target == 5
    assert loop.decide_for(31, busy).target == 1


def test_last_idle_replica_goes_after_the_longer_delay() -> None:
    loop = PolicyLoop(KNOBS)
    loop.decide_for(120, snapshot(*[engine(running_requests=1)] * 3, target=3))

    targets = [loop.decide(snapshot(*[engine()] * 3)).target for _ in range(125)]

    assert set(targets[:119]) == {1}  # fewer had been enough all along
    assert targets[121:] == [0] * 4


def test_idle_fleet_goes_to_zero_in_one_step() -> None:
    loop = PolicyLoop(knobs(downscale_delay_s=100.0))

    targets = [loop.decide(snapshot(*[engine()] * 3, target=3)).target for _ in range(125)]

    assert targets[-1] == 0
    assert 0 in targets[110:]


@pytest.mark.parametrize(
    "seen",
    [
        snapshot(engine(), ready=3, target=3),
        snapshot(engine(), engine(age_s=11), engine(age_s=11)),
        snapshot(engine(), engine(), at={}),
        snapshot(engine(), engine(), at={"i0": ingress(age_s=11)}),
        snapshot(engine(), engine(), ingress_ready=2),
    ],
    ids=["engines absent", "engines stale", "ingress absent", "ingress stale", "one ingress of two absent"],
)
def test_silent_replicas_prevent_scale_down(seen: Snapshot) -> None:
    decision = PolicyLoop(KNOBS).decide_for(400, seen)

    assert decision.target == seen.target
    assert decision.binding == "signals"


def test_one_silent_replica_does_not_stop_scale_down() -> None:
    """It forbade every decrease: 35 % more GPU-seconds on a day with a night."""
    mute = snapshot(engine(), engine(), engine(age_s=3600.0))

    decision = PolicyLoop(KNOBS).decide_for(400, mute)

    assert decision.target == 1


def test_a_silent_replica_counts_like_the_others() -> None:
    busy = engine(running_requests=30, running_tokens=120_000)

    seen = PolicyLoop(KNOBS).decide(snapshot(busy, busy, engine(age_s=11.0))).signals
    new = PolicyLoop(KNOBS).decide(snapshot(busy, busy, ready=3)).signals

    assert (seen["running_requests"], seen["running_tokens"]) == (90, 360_000)
    assert new["running_requests"] == 60  # a replica that has never reported has nothing yet


def test_silent_replicas_do_not_stop_scale_up() -> None:
    # One of three reports, so the policy removes none.
    assert PolicyLoop(KNOBS).decide_for(10, queued(40, ready=3, target=3)).target == 5


def test_replica_goes_only_if_others_can_run_its_batch() -> None:
    # Two decode 30 sequences each in 16.2 ms; one would take 21 for 60 of 1,000 tokens each, and 28 with
    # 60 of 2,000.
    def running(context: int) -> Snapshot:
        return snapshot(*[engine(running_requests=30, running_tokens=30.0 * context)] * 2)

    strict = knobs(itl_target_s=0.026)
    light = PolicyLoop(strict).decide_for(125, running(500))
    heavy = PolicyLoop(strict).decide_for(125, running(1200))

    assert light.target == 1
    assert (heavy.target, heavy.binding) == (2, "batch_limit")
    # Nor if the others have no room in their KV caches.
    full = snapshot(*[engine(running_requests=4, running_tokens=95_000)] * 2)
    assert PolicyLoop(KNOBS).decide_for(125, full).target == 2


# Bounds, modes, what is reported.


def test_bounds_that_move_move_the_target_at_once() -> None:
    loop = PolicyLoop(KNOBS)
    loop.decide_for(3, snapshot(*[engine(running_requests=5)] * 4))

    loop.knobs = knobs(max_replicas=2)
    assert loop.decide(snapshot(*[engine(running_requests=5)] * 4)).target == 2
    loop.knobs = knobs(min_replicas=6)
    assert loop.decide(snapshot(*[engine(running_requests=5)] * 4)).target == 6


def test_reason_names_a_need_beyond_max_replicas() -> None:
    decision = PolicyLoop(knobs(max_replicas=2)).decide(held(80))

    assert (decision.target, decision.wanted) == (2, 2)
    assert decision.binding == "max_replicas"
    assert decision.reason.startswith(
        "max_replicas: max_replicas allows 2 replicas, but 10 replicas are needed. 80 requests"
    )
    assert [clamp.name for clamp in decision.clamps] == ["bounds"]


def test_advise_decides_and_changes_nothing() -> None:
    advise = knobs(mode="advise")

    cold = PolicyLoop(advise).decide(held(24))
    idle = PolicyLoop(advise).decide_for(400, snapshot(engine(), engine()))

    assert (cold.target, cold.wanted, cold.binding) == (0, 3, "mode")
    said = "In mode advise the target stays at no replica. In mode act it would be 3 replicas."
    assert said in cold.reason
    assert (idle.target, idle.wanted, idle.binding) == (2, 0, "mode")
    # The bounds hold all the same.
    assert PolicyLoop(knobs(mode="advise", min_replicas=1)).decide(held(24)).target == 1
    assert PolicyLoop(knobs(mode="advise", max_replicas=2)).decide(snapshot(*[engine()] * 3)).target == 2


def test_a_schedule_brings_its_replicas_and_lets_them_go() -> None:
    window = Schedule(start="22:15", end="22:20", min_replicas=4)  # the test begins at 22:13:20
    loop = PolicyLoop(knobs(schedules=(window,)))
    targets: list[int] = []
    for _ in range(800):
        count = targets[-1] if targets else 0
        targets.append(loop.decide(snapshot(*[engine()] * count, cold_node_start_s=60.0)).target)

    assert targets.index(4) == 40 - 1  # 22:14:00, a cold start early
    assert set(targets[39:399]) == {4}
    assert targets[399] == 0  # 22:20:00; nobody has come for six minutes


def test_a_request_that_has_left_wakes_no_replica() -> None:
    loop = PolicyLoop(KNOBS)
    loop.decide(snapshot())

    left = snapshot(at={"i0": ingress(arrivals_total=40)})

    assert loop.decide_for(30, left).target == 0


def test_pending_capacity_is_said_and_changes_nothing() -> None:
    pending = {"pending": 2, "pending_s": 42.0, "pending_reason": "no node has a free GPU"}

    decision = PolicyLoop(KNOBS).decide(held(24, target=3, ready=0, **pending))

    assert decision.target == 3
    assert decision.clamps == ()
    assert decision.notes == ("capacity: 2 replicas are pending. Reason: no node has a free GPU",)


def test_a_clock_set_back_stops_nothing() -> None:
    loop = PolicyLoop(KNOBS)
    loop.decide_for(50, queued(3, 2))

    loop.now -= 86_400
    targets = [loop.decide(snapshot(engine(), engine())).target for _ in range(200)]

    assert targets[0] == 2
    assert targets[-1] == 0


def test_requests_during_a_cold_start_ask_for_no_more_replicas() -> None:
    loop = PolicyLoop(knobs(max_replicas=32))
    target, targets = 0, []
    for second in range(60):  # one request a second, and a minute until a replica is there
        report = ingress(
            arrivals_total=second,
            arrived_bytes_total=2000.0 * second,
            held_requests=second,
            held_bytes=2000.0 * second,
            oldest_held_s=second,
        )
        target = loop.decide(snapshot(at={"i0": report}, target=target, cold_node_start_s=60.0)).target
        targets.append(target)
    assert max(targets) == targets[-1] == 1
