"""Requests that wait in the ingress for a replica."""

from replay.fleet.fleet import Fleet
from tests.replay.fleet.build import fields, fleet, profile, serve, total


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
