"""Requests that wait in the ingress for a replica."""

import pytest

from replay.fleet.fleet import Fleet
from tests.replay.fleet.build import fields, fleet, of, profile, serve, total


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


def test_first_come_first_served_and_nobody_overtakes() -> None:
    made = fleet(0)
    start(made, 10.0)
    until(made, 10.001, *[(0.1 * number, 100, 2) for number in range(1, 8)])
    assert (fields(made, "in_flight"), total(made, "held")) == ([5], 2)

    # One who arrives now waits behind the two.
    serve(made, (10.002, 900, 1), until=10.003)
    assert total(made, "held") == 3
    until(made, 12.0)
    # The first begins a step alone, 0.020. In the next it decodes and three are prefilled, 0.010 + 0.001 +
    # 0.001 + 0.030; the batch is full. At 10.062 it leaves and the sixth is sent. Then three decode, 300
    # tokens, and the fifth is prefilled: 0.010 + 0.003 + 0.003 + 0.010. At 10.088 three leave, and the last
    # two are sent. 999 tokens are left for the sixth, the seventh and 799 of the eighth's 900: 0.010 + 0.001
    # + 0.001 + 0.0999. Then two decode, 200 tokens, and 101 are prefilled: 0.010 + 0.002 + 0.002 + 0.0101.
    first_tokens = [10.020, 10.062, 10.062, 10.062, 10.088, 10.1999, 10.1999, 10.2240]
    arrivals = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 10.002]
    assert total(made, "ttft_sum") == pytest.approx(sum(first_tokens) - sum(arrivals))


def test_who_has_room_first_gets_the_next_in_order_of_time() -> None:
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


def test_only_who_waited_for_long_was_held_by_a_cold_start() -> None:
    made = fleet(0)
    start(made, 10.0)
    until(made, 11.0, (9.0, 100, 1), (9.6, 100, 1))

    assert made.memory.windows["cold"].sum() == 1
    assert made.memory.windows["requests"].sum() == 2


def test_beyond_what_may_be_held_requests_are_refused() -> None:
    made = fleet(0, max_held=3)
    serve(made, *[(61.0, 100, 1)] * 5, until=62.0)

    assert (total(made, "held"), total(made, "rejected")) == (3, 2)
    assert made.memory.windows["rejected"][1] == 2


def test_while_replicas_drain_and_none_is_ready_requests_are_held() -> None:
    made = fleet(1)
    serve(made, (0.0, 100, 200), until=0.5)
    made.set_target(0)
    serve(made, (0.6, 100, 1), until=1.0)
    assert (of(made, "in_flight"), total(made, "held"), made.draining) == (1, 1, 1)

    start(made, 10.0)
    until(made, 12.0)
    assert (total(made, "finished"), made.draining) == (2, 0)
