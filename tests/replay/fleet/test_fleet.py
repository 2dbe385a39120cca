"""Replicas from the moment they are asked for to the end of their drain, and what they cost."""

import pytest

from replay.fleet.fleet import Fleet
from replay.fleet.layout import E2E, FREE, ITL, RATIO, SHORTEST_S, TTFT
from tests.replay.fleet.build import fields, fleet, of, profile, serve, total


def run(made: Fleet, until: float, tick: float = 0.25) -> None:
    """As the driver does: from one start that ends to the next, and no longer than a tick at once."""
    while made.now < until:
        made.advance(min(until, made.now + tick, max(made.next_event(), made.now)))
        made.settle()


def counts(made: Fleet) -> tuple[int, int, int, int]:
    """Ready, starting, pending, draining."""
    return made.ready, len(made.starting), len(made.pending), made.draining


def test_replicas_take_warm_nodes_first_and_start_faster_there() -> None:
    made = fleet(1, warm_nodes=2, warm_node_start_s=(3.0, 3.0))
    assert made.warm_node_free
    made.set_target(3)
    assert not made.warm_node_free
    run(made, 10.0)
    assert made.cold_starts == [(2, 3.0, True), (3, 10.0, False)]
    # The newest goes, which was on a cold node; then one that was on a warm one.
    made.set_target(2)
    assert not made.warm_node_free
    made.set_target(1)
    assert made.warm_node_free


def test_scale_down_stops_pending_then_starting_then_newest_replicas() -> None:
    made = fleet(3, capacity=5)
    made.set_target(7)
    assert counts(made) == (3, 2, 2, 0)
    made.set_target(6)
    assert counts(made) == (3, 2, 1, 0)
    run(made, 4.0)
    made.set_target(4)
    assert counts(made) == (3, 1, 0, 0)
    # The one asked for last was given up.
    assert [start.number for start in made.starting.values()] == [4]
    serve(made, *[(4.0, 100, 100)] * 3, until=4.5)
    made.set_target(1)
    assert counts(made) == (1, 0, 0, 2)
    assert [made.names[slot] for slot in made.ready_slots] == [1]


def test_reused_slot_begins_empty() -> None:
    made = fleet(1)
    serve(made, (0.0, 100, 3), until=1.0)
    made.set_target(0)
    assert (made.names, of(made, "status")) == ({}, FREE)
    made.set_target(1)
    run(made, 11.0)

    assert made.names == {0: 2}
    for name in ("busy_s", "finished", "prefilled", "taken", "last_sent", "last_end", "steps"):
        assert of(made, name) == 0.0
    assert not made.memory.recent[0].any()


def test_more_open_requests_than_there_are_records_for() -> None:
    made = fleet(8, max_ongoing_requests=10_000)
    records = len(made.memory.requests)
    requests = [(0.000_001 * number, 10, 1) for number in range(2 * records + 10)]
    serve(made, *requests, until=0.01)
    assert (len(made.memory.requests), total(made, "open")) == (4 * records, len(requests))

    made.advance(200.0)
    assert (total(made, "finished"), total(made, "open")) == (len(requests), 0)


# -- what starts may do


def test_a_start_that_fails_is_tried_again_and_paid_for() -> None:
    made = fleet(0, start_failures=0.5, seed=3)
    made.set_target(8)
    run(made, 100.0)

    assert (counts(made), len(made.cold_starts)) == ((8, 0, 0, 0), 8)
    assert made.failed_starts > 0
    assert made.starts == 8 + made.failed_starts
    # Only starts that succeeded tell how long one takes.
    assert {seconds for _, seconds, _ in made.cold_starts} == {10.0}
    made.end()
    warming = made.gpu_seconds().warming
    assert 80.0 < warming < 80.0 + 10.0 * made.failed_starts
    assert made.gpu_seconds().total == pytest.approx(800.0, rel=0.05)


def test_replicas_beyond_capacity_are_pending() -> None:
    made = fleet(2, capacity=2)
    serve(made, (0.0, 100, 40), (0.001, 100, 40), until=0.1)
    made.set_target(1)
    made.set_target(3)
    # The one that drains has its place to the end.
    assert counts(made) == (1, 0, 2, 1)
    run(made, 5.0)
    assert counts(made) == (1, 1, 1, 0)
    run(made, 20.0)
    assert counts(made) == (2, 0, 1, 0)
    assert made.peak == 2


# -- what they cost


def test_replica_that_drains_by_itself_has_served_before() -> None:
    made = fleet(2, drain_move_after_s=5.0)
    serve(made, *[(0.0, 100, 200)] * 8, until=2.0)
    made.set_target(1)
    # All of its requests end between two looks at it, after the time at which streams move.
    made.advance(20.0)
    made.settle()
    made.end()

    assert made.gpu_seconds().serving > 2 * 2.0


def test_the_bill_of_one_replica_by_what_it_did() -> None:
    made = fleet(0)
    run(made, 2.0)
    made.set_target(1)
    run(made, 20.0)
    # At 20 s 0.040 and 0.014 of work; then it drains for what is left of a step.
    serve(made, (20.0, 300, 2), until=20.050)
    made.set_target(0)
    run(made, 30.0)
    made.end()
    bill = made.gpu_seconds()

    assert bill.warming == pytest.approx(10.0)
    assert bill.serving == pytest.approx(0.050)
    assert bill.idle == pytest.approx(8.0)
    assert bill.draining == pytest.approx(0.004)


def test_drain_is_billed_to_its_last_token() -> None:
    made = fleet(1)
    serve(made, (0.0, 300, 2), until=0.010)
    made.set_target(0)
    made.advance(60.0)
    made.settle()

    assert made.gpu_seconds().total == pytest.approx(0.054)


def test_streams_move_off_a_draining_replica_after_a_delay() -> None:
    made = fleet(2, drain_move_after_s=1.0)
    serve(made, (0.01, 100, 300), (0.02, 100, 300), until=0.5)
    made.set_target(1)
    made.advance(1.4)
    made.settle()
    assert (total(made, "moves"), made.draining) == (0, 1)

    made.advance(1.5)
    made.settle()
    assert (total(made, "moves"), made.draining) == (1, 0)
    assert fields(made, "in_flight") == [2]
    assert made.gpu_seconds().draining == pytest.approx(1.0)

    made.advance(60.0)
    assert total(made, "finished") == 2
    assert total(made, "finished_output") == 600
    # Beside the two first tokens, what the moved one had is prefilled again.
    assert of(made, "prefilled") > 2 * 100 + 50


# Steps of one engine: 10 ms a step + 1 ms a sequence + 10 us a KV token + 100 us a prompt token.


def start(made: Fleet, *after_s: float) -> None:
    """Ask for as many replicas more, which are ready after so many seconds."""
    known = set(made.starting)
    made.set_target(made.target + len(after_s))
    for slot, seconds in zip(sorted(set(made.starting) - known), after_s, strict=True):
        made.starting[slot].cold_start_s = seconds


def until(made: Fleet, end: float, *requests: tuple[float, int, int]) -> None:
    """As the driver does: time passes from one start that ends to the next."""
    if requests:
        serve(made, *requests, until=requests[-1][0] + 1e-6)
    while made.now < end:
        made.advance(min(end, made.next_event()))
        made.settle()


def test_a_burst_is_spread_over_replicas_that_come_seconds_apart() -> None:
    made = fleet(0)
    start(made, 10.0, 10.2, 10.4)
    # 2 s and more of work each: nobody ends before all three replicas are there.
    burst = [(0.001 * number, 100, 300) for number in range(20)]

    until(made, 10.1, *burst)
    # A batch of 4 and an eighth of it, 1, ahead.
    assert fields(made, "in_flight") == [5]
    assert (total(made, "held"), total(made, "admitted")) == (15, 5)
    until(made, 10.3)
    assert fields(made, "in_flight") == [5, 5]
    until(made, 10.5)
    assert fields(made, "in_flight") == [5, 5, 5]
    until(made, 60.0)
    assert (total(made, "held"), total(made, "held_bytes"), total(made, "finished")) == (0, 0, 20)


def test_queued_requests_go_to_the_first_free_replica() -> None:
    made = fleet(0, of=profile(max_num_seqs=1))
    start(made, 10.0, 10.0)
    # One in the batch and one ahead for each replica, two are held. 300 tokens take 0.040, 500 take 0.060.
    until(
        made, 10.0, (0.1, 300, 1), (0.2, 500, 1), (0.3, 300, 1), (0.4, 500, 1), (0.5, 700, 1), (0.6, 900, 1)
    )
    assert (fields(made, "in_flight"), total(made, "held")) == ([2, 2], 2)

    # At 10.040 the fifth goes to the first replica, at 10.060 the sixth to the second, though both steps end
    # before anybody looks.
    until(made, 10.065)
    assert fields(made, "in_flight") == [2, 2]
    assert fields(made, "waiting_tokens") == [300 + 700, 500 + 900]


def test_only_long_waits_count_as_cold() -> None:
    made = fleet(0)
    start(made, 10.0)
    until(made, 11.0, (9.0, 100, 1), (9.6, 100, 1))

    assert made.memory.windows["cold"].sum() == 1
    assert made.memory.windows["requests"].sum() == 2


def test_latencies_are_kept_to_a_hundredth() -> None:
    alone = fleet()
    serve(alone, (0.0, 300, 3), until=1.0)
    histograms = alone.memory.histograms

    def only(which: int) -> float:
        places = histograms[which].nonzero()[0]
        return float(SHORTEST_S * RATIO ** (places.mean() + 0.5))

    assert only(TTFT) == pytest.approx(0.040, rel=0.01)
    assert only(ITL) == pytest.approx(0.014, rel=0.01)
    assert only(E2E) == pytest.approx(0.06801, rel=0.01)


def test_too_long_requests_are_refused_and_missed() -> None:
    small = fleet(of=profile(kv_cache_tokens=1024))
    serve(small, (70.0, 1000, 24), (71.0, 1000, 25), until=80.0)

    assert (total(small, "too_long"), total(small, "rejected"), total(small, "finished")) == (1, 1, 1)
    minute = small.memory.windows[1]
    assert (minute["requests"], minute["rejected"], minute["ttft_ok"]) == (2, 1, 1)


def test_requests_too_slow_on_an_empty_replica_are_infeasible() -> None:
    made = fleet()
    # 0.010 + 0.190 = 0.2, the target; two chunks of a longer prompt have two steps' base.
    serve(made, (0.0, 1000, 1), (1.0, 1800, 1), (2.0, 1801, 1), until=3.0)

    assert total(made, "infeasible") == 1
