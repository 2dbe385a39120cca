from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from serve_app.autoscaling.decision import Term
from serve_app.autoscaling.demand import Demand
from serve_app.autoscaling.feedback import measure
from serve_app.autoscaling.knobs import Knobs
from serve_app.autoscaling.observe import observe
from serve_app.autoscaling.schedule import Schedule
from serve_app.autoscaling.service import Mix, StepTime
from serve_app.autoscaling.signals import Snapshot
from serve_app.autoscaling.state import PolicyState
from serve_app.autoscaling.terms import (
    MOST_REPLICAS,
    Sizing,
    horizon_s,
    load_terms,
    standing_queue,
    standing_terms,
)
from tests.autoscaling.build import NOW, engine, ingress, snapshot

KNOBS = Knobs(min_replicas=0, max_replicas=100, queue_target_per_replica=8, headroom=0)
A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
SIZING = Sizing(A100, Mix(1000, 1.0, 128), model_rps=3.0, correction=1.0, headroom=0.0)


def arriving(rps: float, seconds: int = 120) -> Demand:
    demand = Demand().add(NOW - seconds, 0, 0)
    for second in range(1, seconds + 1):
        demand = demand.add(NOW - seconds + second, rps, 1000 * rps)
    return demand


def terms_of(
    seen: Snapshot,
    state: PolicyState | None = None,
    knobs: Knobs = KNOBS,
    sizing: Sizing = SIZING,
    **memory: Any,
) -> dict[str, Term]:
    """The load's terms, with a queue that has stood for as long as need be."""
    observation, state = observe(seen, state or PolicyState(), NOW)
    queued = (observation.queued_requests, observation.queued_tokens)
    state = replace(state, **{"queue": ((NOW - 5, *queued), (NOW, *queued)), **memory})
    measured = measure(observation.engines, knobs, 0.012)
    return {term.name: term for term in load_terms(seen, knobs, state, observation, measured, sizing, NOW)}


# Arrivals.


@pytest.mark.parametrize(
    ("rps", "headroom", "replicas"),
    [(0, 1, 0), (0.01, 0, 1), (3, 0, 1), (3.1, 0, 2), (12, 0, 4), (12, 1, 6), (12, 0.5, 5), (300, 1, 110)],
)
def test_replicas_for_a_rate_are_its_load_and_a_share_of_its_root(
    rps: float, headroom: float, replicas: int
) -> None:
    # 12 a second are 4 replicas of load; sqrt(4) = 2 more with headroom 1.
    assert replace(SIZING, headroom=headroom).replicas(rps) == replicas


@pytest.mark.parametrize("headroom", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("replicas", [1, 2, 7, 40])
def test_the_most_a_fleet_carries_is_the_inverse_of_that(headroom: float, replicas: int) -> None:
    sizing = replace(SIZING, headroom=headroom, correction=0.7)

    most = sizing.most_rps(replicas)

    assert sizing.replicas(most) == replicas
    assert sizing.replicas(most * 1.01) == replicas + 1


def test_arrivals_ask_for_what_the_rate_needs_by_the_model() -> None:
    terms = terms_of(snapshot(engine()), demand=arriving(7.0))

    assert terms["arrivals"].replicas == 3
    assert "7 requests/s arrive" in terms["arrivals"].why


def test_arrivals_use_a_capacity_that_latencies_have_raised_and_leave_one_they_lowered_to_feedback() -> None:
    raised = terms_of(snapshot(engine()), demand=arriving(9.0), sizing=replace(SIZING, correction=1.5))
    lowered = terms_of(snapshot(engine()), demand=arriving(9.0), sizing=replace(SIZING, correction=0.5))

    assert raised["arrivals"].replicas == 2
    assert (lowered["arrivals"].replicas, lowered["ttft"].replicas) == (3, 6)


def test_feedback_is_named_for_the_target_that_is_missed() -> None:
    slow = engine(
        itl_count=100, itl_p50_s=0.02, itl_p90_s=0.06, itl_p95_s=0.06, itl_p99_s=0.06, ttft_count=100
    )

    terms = terms_of(snapshot(slow), demand=arriving(9.0), sizing=replace(SIZING, correction=0.9))

    assert terms["itl"].replicas == 4
    assert "miss the ITL target" in terms["itl"].why
    assert "ttft" not in terms


def test_without_misses_there_is_no_feedback() -> None:
    assert {"ttft", "itl"}.isdisjoint(terms_of(snapshot(engine())))


# The queue, in requests.


@pytest.mark.parametrize(("waiting", "replicas"), [(0, 0), (1, 1), (8, 1), (9, 2), (24, 3), (25, 4)])
def test_the_queue_asks_for_a_replica_for_every_target_s_worth_begun(waiting: int, replicas: int) -> None:
    assert terms_of(snapshot(engine(waiting_requests=waiting)))["queue"].replicas == replicas


def test_held_and_waiting_requests_are_one_queue() -> None:
    seen = snapshot(engine(waiting_requests=10), at={"i0": ingress(held_requests=7)})

    assert terms_of(seen)["queue"].replicas == 3


def test_only_the_part_of_a_queue_that_has_stood_counts() -> None:
    stood = ((NOW - 5, 30.0, 0.0), (NOW - 2, 6.0, 0.0), (NOW, 40.0, 0.0))

    terms = terms_of(snapshot(engine(waiting_requests=40)), queue=stood)

    assert terms["queue"].replicas == 1


def test_at_zero_replicas_all_of_it_counts_at_once() -> None:
    seen = snapshot(at={"i0": ingress(held_requests=24)})
    observation, state = observe(seen, PolicyState(), NOW)

    assert standing_queue(state, observation, ready=0) == (24, 0)
    assert terms_of(seen, queue=())["queue"].replicas == 3


# The queue, in tokens.


def test_few_long_prompts_ask_for_more_than_their_number_does() -> None:
    # 6 prompts of 2,000 tokens are 0.6 s of prefill; 0.2 s less a step leave 0.19 s for it.
    seen = snapshot(engine(waiting_requests=6, waiting_tokens=12_000))

    terms = terms_of(seen)

    assert (terms["queue"].replicas, terms["queue_tokens"].replicas) == (1, 4)


def test_many_short_prompts_ask_for_less() -> None:
    assert terms_of(snapshot(engine(waiting_requests=16, waiting_tokens=320)))["queue_tokens"].replicas == 1


def test_prompts_found_in_the_prefix_cache_are_no_work() -> None:
    seen = snapshot(engine(waiting_requests=6, waiting_tokens=12_000))

    cached = replace(SIZING, mix=Mix(2000, 0.1, 128))

    assert terms_of(seen, sizing=cached)["queue_tokens"].replicas == 1


def test_a_prompt_is_never_split_over_replicas() -> None:
    # One prompt of 100,000 tokens takes 5 s, on however many.
    assert terms_of(snapshot(engine(waiting_requests=1, waiting_tokens=1e5)))["queue_tokens"].replicas == 1
    assert terms_of(snapshot(engine(waiting_requests=3, waiting_tokens=3e5)))["queue_tokens"].replicas == 3


def test_after_a_cold_start_a_backlog_may_take_a_tenth_of_it() -> None:
    # 60 prompts of 1,000 tokens: 3 s of prefill. A replica that takes 60 s to start may take 6 more.
    front = ingress(held_requests=60, held_bytes=60 * 4000)

    slow = terms_of(snapshot(at={"i0": front}, cold_start_s=60.0), queue=())
    fast = terms_of(snapshot(at={"i0": front}, cold_start_s=10.0), queue=())

    assert (slow["queue_tokens"].replicas, fast["queue_tokens"].replicas) == (1, 3)


def test_a_queue_of_prompts_beyond_the_ttft_target_is_cleared_and_the_target_not_chased() -> None:
    # 10 prompts of 8,000 tokens, 0.4 s of prefill each: no fleet gives any of them its token in 0.2 s.
    seen = snapshot(engine(waiting_requests=10, waiting_tokens=80_000), cold_start_s=20.0)

    assert terms_of(seen)["queue_tokens"].replicas == 2  # 4 s of work in a tenth of a cold start
    within = KNOBS.model_copy(update={"ttft_target_s": 0.5})
    assert terms_of(seen, knobs=within)["queue_tokens"].replicas == 9


# The KV cache.


def test_the_kv_cache_asks_for_room_for_all_that_runs_and_waits() -> None:
    seen = snapshot(engine(running_tokens=150_000, waiting_tokens=40_000), engine())

    assert terms_of(seen)["kv_cache"].replicas == 2  # 190,000 of 180,000 a replica
    assert terms_of(snapshot(engine()))["kv_cache"].replicas == 0
    assert terms_of(snapshot(engine(running_tokens=1)))["kv_cache"].replicas == 1


def test_an_engine_that_does_not_say_how_large_its_cache_is_asks_for_nothing() -> None:
    assert terms_of(snapshot(engine(running_tokens=1e9, kv_cache_tokens=0)))["kv_cache"].replicas == 0


# The forecast.


def test_the_forecast_keeps_what_the_peaks_of_the_recent_past_needed() -> None:
    demand = arriving(9.0, 100)
    for second in range(1, 301):
        demand = demand.add(NOW + second, 1.0, 1000.0)
    seen = snapshot(engine(), cold_start_s=75.0)

    # 100 of 400 s were busy: the 0.9-quantile is of those.
    assert terms_of(seen, demand=demand)["forecast"].replicas == 3
    low = KNOBS.model_copy(update={"forecast_quantile": 0.5})
    assert terms_of(seen, demand=demand, knobs=low)["forecast"].replicas == 1


def test_the_forecast_looks_back_sixteen_cold_starts_and_no_further_than_its_knob() -> None:
    def window(cold_start_s: float | None, knobs: Knobs = KNOBS) -> str:
        return terms_of(snapshot(engine(), cold_start_s=cold_start_s), knobs=knobs)["forecast"].why

    assert "last 320 s" in window(20.0)
    assert "last 60 s" in window(1.0)
    assert "last 1200 s" in window(180.0)
    assert "last 960 s" in window(None)
    assert "last 100 s" in window(180.0, KNOBS.model_copy(update={"forecast_window_s": 100.0}))


def test_the_forecast_can_be_turned_off() -> None:
    off = KNOBS.model_copy(update={"forecast": False})

    assert "forecast" not in terms_of(snapshot(engine()), knobs=off, demand=arriving(9.0))


@pytest.mark.parametrize("seconds", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_cold_start_that_was_not_measured_is_guessed(seconds: float | None) -> None:
    assert horizon_s(snapshot(cold_start_s=seconds)) == 60.0
    assert horizon_s(snapshot(cold_start_s=7.5)) == 7.5


# What stands whatever the load.


def standing(seen: Snapshot, knobs: Knobs = KNOBS, **memory: Any) -> dict[str, Term]:
    observation, state = observe(seen, PolicyState(), NOW)
    state = replace(state, **memory)
    return {term.name: term for term in standing_terms(seen, knobs, state, observation, NOW)}


def test_whoever_waits_or_runs_keeps_one_replica() -> None:
    assert standing(snapshot(at={"i0": ingress(held_requests=1)}))["wake"].replicas == 1
    assert standing(snapshot(engine(running_requests=1)))["wake"].replicas == 1
    assert "wake" not in standing(snapshot(engine()))


def test_the_last_replica_is_kept_until_the_model_has_been_idle_for_the_delay() -> None:
    assert standing(snapshot(engine()), idle_since=NOW - 299)["keep_alive"].replicas == 1
    assert standing(snapshot(engine()), idle_since=NOW - 300)["keep_alive"].replicas == 0
    assert "keep_alive" not in standing(snapshot(), idle_since=NOW - 10)


def test_what_is_not_known_to_be_idle_is_kept_even_without_a_delay() -> None:
    eager = KNOBS.model_copy(update={"downscale_to_zero_delay_s": 0.0})

    assert standing(snapshot(ready=1), knobs=eager, idle_since=None)["keep_alive"].replicas == 1
    assert standing(snapshot(engine()), knobs=eager, idle_since=NOW)["keep_alive"].replicas == 0


def test_a_schedule_asks_for_its_replicas_a_cold_start_early() -> None:
    window = Schedule(start="22:20", end="23:00", min_replicas=5)  # NOW is 22:13:20 UTC
    knobs = KNOBS.model_copy(update={"schedules": (window,)})

    assert standing(snapshot(cold_start_s=399.0), knobs)["schedule"].replicas == 0
    assert standing(snapshot(cold_start_s=400.0), knobs)["schedule"].replicas == 5
    assert "schedule" not in standing(snapshot())


# Whatever comes in, a whole and finite number comes out.


def test_no_load_asks_for_more_than_the_largest_number() -> None:
    flood = snapshot(
        engine(waiting_requests=1e14, waiting_tokens=1e14, running_tokens=1e14, kv_cache_tokens=1e-300)
    )
    tiny = KNOBS.model_copy(update={"queue_target_per_replica": 1e-300})

    terms = terms_of(flood, knobs=tiny, demand=arriving(1e15))

    assert {term.replicas for term in terms.values()} == {MOST_REPLICAS}
