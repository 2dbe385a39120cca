import math
from dataclasses import replace
from typing import Any

import pytest

from serve_app.learning.demand import Demand, DemandHistogram
from serve_app.learning.next_decision import learn
from serve_app.learning.state import PolicyState
from serve_app.policy.capacity_model import MOST_REPLICAS, Mix, Sizing, StepTime
from serve_app.policy.decide import Decision, Term, decide
from serve_app.policy.inputs import Inputs, Snapshot
from serve_app.settings.knobs import Knobs
from tests.policy.build import NOW, engine, ingress, snapshot

KNOBS = Knobs(min_replicas=0, max_replicas=100, queue_target_per_replica=8, headroom=0, upscale_delay_s=0)
A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
SIZING = Sizing(A100, Mix(1000, 1.0, 128), KNOBS, itl_rps=3.0)


def arriving(rps: float, seconds: int = 120) -> Demand:
    demand = Demand().add(NOW - seconds, 0)
    for second in range(1, seconds + 1):
        demand = demand.add(NOW - seconds + second, rps)
    return demand


def inputs(seen: Snapshot, knobs: Knobs = KNOBS, sizing: Sizing = SIZING, **memory: Any) -> Inputs:
    """The inputs of a decision about replicas of known capacity, with fields of the memory."""
    found, _ = learn(seen, knobs, replace(PolicyState(), **memory), NOW)
    return replace(found, sizing=sizing)


def decided(seen: Snapshot, **rest: Any) -> Decision:
    return decide(inputs(seen, **rest))


def terms_of(seen: Snapshot, **rest: Any) -> dict[str, Term]:
    return {term.name: term for term in decided(seen, **rest).terms}


# Demand.


def test_demand_needs_the_rate_over_one_replicas_capacity() -> None:
    demand = terms_of(snapshot(engine()), demand=arriving(7.0))["demand"]

    assert demand.replicas == 3
    assert demand.why == (
        "Load over the last 60 s: 7 requests/s. One replica serves 3 requests/s, so 3 replicas are needed."
    )


def test_scale_down_allows_for_a_rate_read_too_low() -> None:
    """420 arrivals in a minute are read to 0.34 requests/s: two such errors more are 7.7 requests/s."""
    kept = [
        decided(snapshot(engine()), demand=arriving(rps)).recent_needs[-1].replicas
        for rps in (7.0, 8.0, 8.4, 0.0)
    ]

    assert kept == [3, 3, 4, 0]


# The queue, in requests.


@pytest.mark.parametrize(("waiting", "replicas"), [(0, 0), (1, 1), (8, 1), (9, 2), (24, 3), (25, 4)])
def test_queue_needs_a_replica_for_each_target_begun(waiting: int, replicas: int) -> None:
    assert terms_of(snapshot(engine(waiting_requests=waiting)))["queue"].replicas == replicas


def test_queue_asks_for_no_more_while_replicas_start() -> None:
    waiting = engine(waiting_requests=80, waiting_tokens=80_000)

    coming = terms_of(snapshot(waiting, target=3, cold_node_start_s=20.0))
    there = terms_of(snapshot(waiting, engine(), engine(), cold_node_start_s=20.0))

    # 80 requests are ten replicas' worth.
    assert (coming["queue"].replicas, there["queue"].replicas) == (3, 10)
    assert coming["queue"].why.endswith(
        "10 replicas are needed. While replicas start, the queue asks for 3 replicas at most."
    )


def test_at_zero_a_queue_is_bounded_after_the_upscale_delay() -> None:
    seen = snapshot(at={"i0": ingress(held_requests=80)}, target=2)
    knobs = KNOBS.model_copy(update={"upscale_delay_s": 5.0})

    def most(woken_s: float) -> int:
        return inputs(seen, knobs, woken_at=NOW - woken_s).most_for_queue

    assert (most(5.0), most(5.1)) == (MOST_REPLICAS, 2)


# The queue, in tokens.


def test_queue_of_long_prompts_needs_replicas_by_prefill_time() -> None:
    # 6 prompts of 2,000 tokens are 0.6 s of prefill; in a tenth of 2 s that takes three.
    seen = snapshot(engine(waiting_requests=6, waiting_tokens=12_000), cold_node_start_s=2.0)
    short = snapshot(engine(waiting_requests=16, waiting_tokens=320))
    cached = replace(SIZING, mix=Mix(2000, 0.1, 128))

    terms = terms_of(seen)

    assert terms["queue"].replicas == 3
    assert terms["queue"].why == (
        "The waiting requests need 0.6 s of prefill. One replica may have a queue of 0.2 s, "
        "so 3 replicas are needed."
    )
    assert terms_of(short)["queue"].replicas == 2  # by their number
    assert terms_of(seen, sizing=cached)["queue"].replicas == 1


def test_queue_needs_at_most_one_replica_per_prompt() -> None:
    # One prompt of 100,000 tokens takes 5 s, on however many.
    def asked(prompts: int) -> int:
        seen = snapshot(engine(waiting_requests=prompts, waiting_tokens=prompts * 1e5), cold_node_start_s=1.0)
        return terms_of(seen)["queue"].replicas

    assert (asked(1), asked(3)) == (1, 3)


def test_backlog_may_take_a_tenth_of_a_cold_start() -> None:
    # 8 prompts of 7,500 tokens: 3 s of prefill. A replica that takes 60 s to start may take 6 more.
    front = ingress(held_requests=8, held_bytes=8 * 30_000)

    slow = terms_of(snapshot(at={"i0": front}, cold_node_start_s=60.0))
    fast = terms_of(snapshot(at={"i0": front}, cold_node_start_s=10.0))

    assert (slow["queue"].replicas, fast["queue"].replicas) == (1, 3)


def test_queue_of_long_prompts_does_not_chase_ttft_target() -> None:
    # 8 prompts of 10,000 tokens, 0.5 s of prefill each: no fleet gives any of them its token in 0.2 s.
    seen = snapshot(engine(waiting_requests=8, waiting_tokens=80_000), cold_node_start_s=20.0)

    assert terms_of(seen)["queue"].replicas == 2  # 4 s of work in a tenth of a cold start
    within = KNOBS.model_copy(update={"ttft_target_s": 0.5})
    assert terms_of(seen, knobs=within)["queue"].replicas == 2
    # Beyond a tenth of a cold start, the target is what there is to keep: 4 s of work in 4 s.
    relaxed = KNOBS.model_copy(update={"ttft_target_s": 4.0})
    assert terms_of(seen, knobs=relaxed)["queue"].replicas == 1


# The KV cache.


def test_kv_cache_needs_room_for_running_and_waiting_requests() -> None:
    seen = snapshot(engine(running_tokens=150_000, waiting_tokens=40_000), engine())

    assert terms_of(seen)["kv_cache"].replicas == 2  # 190,000 of 180,000 a replica
    assert terms_of(snapshot(engine()))["kv_cache"].replicas == 0
    assert terms_of(snapshot(engine(running_tokens=1)))["kv_cache"].replicas == 1
    # An engine that does not say how large its cache is asks for nothing.
    assert terms_of(snapshot(engine(running_tokens=1e9, kv_cache_tokens=0)))["kv_cache"].replicas == 0


# The forecast.


def remembered(level: float, rise: float, minutes: float) -> DemandHistogram:
    """So many minutes of requests, all of which came at one demand and after one rise."""
    histogram = DemandHistogram()
    for _ in range(round(12 * minutes)):
        histogram = histogram.note(level - rise, level, 1.0, 12.0, 1.0, 12)
    return histogram


def forecast(now_rps: float, histogram: DemandHistogram, q: float = 0.9) -> Term:
    demand = replace(arriving(now_rps), histogram=histogram)
    knobs = KNOBS.model_copy(update={"forecast_quantile": q})
    return terms_of(snapshot(engine(), cold_node_start_s=75.0), demand=demand, knobs=knobs)["demand"]


@pytest.mark.parametrize(
    ("now_rps", "rise", "most", "minutes", "replicas"),
    [
        (2.0, 6.0, 20.0, 60, 3),  # two a second that may rise by six: 8 / 3
        (9.0, 6.0, 11.0, 60, 4),  # it has never been more than 11
        (17.0, 6.0, 11.0, 60, 6),  # but it is already
        (2.0, 6.0, 4.0, 5, 3),  # 4, and 0.59 of a rise: with that chance all five minutes were low ones
        (2.0, 6.0, 4.0, 0, 1),  # nothing known
    ],
)
def test_forecast_allows_the_rise_and_the_level_seen_before(
    now_rps: float, rise: float, most: float, minutes: float, replicas: int
) -> None:
    assert forecast(now_rps, remembered(most, rise, minutes)).replicas == replicas


@pytest.mark.parametrize(
    ("start_s", "covered"), [(180.0, 0.9), (60.0, 0.9), (15.0, 0.8), (3.75, 0.6), (0.5, 0.6)]
)
def test_forecast_of_a_shorter_start_covers_fewer_requests(start_s: float, covered: float) -> None:
    histogram = DemandHistogram()
    for level in range(1, 101):
        histogram = histogram.note(level - 100.0, float(level), 1.0, 12.0, 1.0, 12)
    seen = snapshot(engine(), warm_node_start_s=start_s, warm_node=True)
    terms = terms_of(
        seen, demand=replace(arriving(2.0), histogram=histogram), sizing=replace(SIZING, headroom=0)
    )

    assert f" For {100 * covered:.0f} % of past requests, the load was no higher." in terms["demand"].why


def test_demand_explains_its_forecast_with_numbers() -> None:
    histogram = remembered(level=4.0, rise=1.0, minutes=10)

    assert forecast(2.0, histogram).why.startswith(
        "Load over the last 60 s: 2 requests/s. "
        "Allowed for while a replica starts (75 s): a rise to 3.35 requests/s. "
        "For 90 % of past requests at a similar load, the load rose no more. "
        "Only 10 minutes of traffic are known, so the rise includes 0.35 requests/s more. "
        "One replica serves"
    )
    unlike = forecast(0.2, remembered(level=40.0, rise=10.0, minutes=10)).why
    assert ". For 90 % of past requests, the load rose no more. " in unlike
    # After half an hour there is nothing to say of what is not known.
    why = forecast(3.0, remembered(level=4.0, rise=1.0, minutes=40)).why
    assert "(75 s): a rise to 3.93 requests/s. For 90 % of past requests, the load was no higher. One" in why


def test_forecast_that_adds_no_replica_is_not_explained() -> None:
    why = forecast(0.2, remembered(level=4.0, rise=1.0, minutes=40)).why

    assert (
        why
        == "Load over the last 60 s: 0.2 requests/s. One replica serves 3 requests/s, so 1 replica is needed."
    )


def test_forecast_can_be_turned_off() -> None:
    off = KNOBS.model_copy(update={"forecast": False})
    demand = replace(arriving(2.0), histogram=remembered(20.0, 20.0, 60))

    assert terms_of(snapshot(engine()), knobs=off, demand=demand)["demand"].replicas == 1
    assert terms_of(snapshot(engine()), demand=demand)["demand"].replicas > 5


@pytest.mark.parametrize(
    ("warm_node", "warm_s", "cold_s", "horizon_s"),
    [
        (True, 4.0, 90.0, 4.0),
        (False, 4.0, 90.0, 90.0),
        # A node may take longer to import than any warm start has shown, and never less.
        (True, None, 90.0, 90.0),
        (False, 4.0, None, 60.0),
        (False, 70.0, None, 70.0),
        # Nothing is measured, or nothing valid.
        *[(False, None, seconds, 60.0) for seconds in (None, 0.0, -1.0, math.nan, math.inf)],
    ],
)
def test_planning_uses_starts_on_the_next_node_kind(
    warm_node: bool, warm_s: float | None, cold_s: float | None, horizon_s: float
) -> None:
    seen = snapshot(warm_node=warm_node, warm_node_start_s=warm_s, cold_node_start_s=cold_s)

    assert seen.horizon_s == horizon_s


# The terms that count whatever the load.


def test_waiting_or_running_requests_keep_one_replica() -> None:
    assert terms_of(snapshot(at={"i0": ingress(held_requests=1)}))["awake"].replicas == 1
    assert terms_of(snapshot(engine(running_requests=1)), idle_since=NOW - 999)["awake"].replicas == 1


def test_last_replica_stays_until_the_idle_delay_is_over() -> None:
    assert terms_of(snapshot(engine()), idle_since=NOW - 299)["awake"].replicas == 1
    assert terms_of(snapshot(engine()), idle_since=NOW - 300)["awake"].replicas == 0
    assert terms_of(snapshot(), idle_since=NOW - 10)["awake"].replicas == 0


def test_model_not_known_to_be_idle_keeps_a_replica() -> None:
    eager = KNOBS.model_copy(update={"downscale_to_zero_delay_s": 0.0})

    assert terms_of(snapshot(ready=1), knobs=eager, idle_since=None)["awake"].replicas == 1
    assert terms_of(snapshot(engine()), knobs=eager, idle_since=NOW)["awake"].replicas == 0


# Whatever comes in, a whole and finite number comes out.


@pytest.mark.parametrize(
    ("start_s", "given_s", "window_s"),
    [(1.0, None, 10.0), (3.0, None, 12.0), (75.0, None, 60.0), (3.0, 90.0, 90.0)],
)
def test_scale_down_window_defaults_to_four_starts(
    start_s: float, given_s: float | None, window_s: float
) -> None:
    knobs = KNOBS.model_copy(update={"downscale_delay_s": given_s})

    assert inputs(snapshot(cold_node_start_s=start_s), knobs).scale_down_window_s == window_s
