import math
from dataclasses import replace
from typing import Any

import pytest

from serve_app.policy.capacity_model import MOST_REPLICAS, Mix, Sizing, StepTime
from serve_app.policy.demand import Demand, Peaks
from serve_app.policy.explanation import Term
from serve_app.policy.feedback import measure
from serve_app.policy.inputs import Inputs
from serve_app.policy.observe import Observation, observe
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.policy.terms import baseline_terms, load_terms, most_for_a_queue, standing_queue
from serve_app.settings.knobs import Knobs, Schedule
from tests.policy.build import NOW, engine, ingress, snapshot

KNOBS = Knobs(min_replicas=0, max_replicas=100, queue_target_per_replica=8, headroom=0)
A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
SIZING = Sizing(A100, Mix(1000, 1.0, 128), KNOBS, itl_rps=3.0)


def arriving(rps: float, seconds: int = 120) -> Demand:
    demand = Demand().add(NOW - seconds, 0)
    for second in range(1, seconds + 1):
        demand = demand.add(NOW - seconds + second, rps)
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
    return {term.name: term for term in load_terms(inputs(seen, observation, state, knobs, sizing))}


def inputs(
    seen: Snapshot,
    observation: Observation,
    state: PolicyState,
    knobs: Knobs = KNOBS,
    sizing: Sizing = SIZING,
) -> Inputs:
    measured = measure(observation.engines, knobs, 0.012)
    return Inputs(seen, knobs, state, observation, measured, sizing, NOW, state.demand.felt_rps(NOW))


# Arrivals.


def test_arrivals_ask_for_what_the_rate_needs_by_the_model() -> None:
    terms = terms_of(snapshot(engine()), demand=arriving(7.0))

    assert "ttft" not in terms  # without a late first token
    assert terms["arrivals"].replicas == 3
    assert terms["arrivals"].why == (
        "7 requests/s arrive (7 over 30 s, 7 over 60 s), and one replica can serve 3 requests/s, "
        "so 3 replicas are needed"
    )


def test_what_latencies_took_from_the_capacity_is_left_to_their_own_term() -> None:
    terms = terms_of(snapshot(engine()), demand=arriving(9.0), sizing=replace(SIZING, correction=0.5))

    assert (terms["arrivals"].replicas, terms["ttft"].replicas) == (3, 6)
    assert "capacity is corrected by the factor 0.50, so 6 replicas are needed" in terms["ttft"].why


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


def test_while_replicas_are_on_their_way_a_queue_asks_for_no_more() -> None:
    waiting = engine(waiting_requests=80, waiting_tokens=80_000)

    coming = terms_of(snapshot(waiting, target=3, cold_node_start_s=20.0))
    there = terms_of(snapshot(waiting, engine(), engine(), cold_node_start_s=20.0))

    # 80 requests are ten replicas' worth; 4 s of prefill in a tenth of 20 s are two.
    assert (coming["queue"].replicas, coming["queue_tokens"].replicas) == (3, 2)
    assert (there["queue"].replicas, there["queue_tokens"].replicas) == (10, 2)


def test_at_zero_it_may_ask_for_as_many_as_it_needs_until_the_delay_after_the_wake_is_over() -> None:
    seen = snapshot(at={"i0": ingress(held_requests=80)}, target=2)
    observation, state = observe(seen, PolicyState(), NOW)

    def may_ask(woken_s: float) -> int:
        return most_for_a_queue(inputs(seen, observation, replace(state, woken_at=NOW - woken_s)))

    assert (may_ask(5.0), may_ask(5.1)) == (MOST_REPLICAS, 2)


# The queue, in tokens.


def test_few_long_prompts_ask_for_more_than_their_number_does_and_short_or_cached_ones_for_less() -> None:
    # 6 prompts of 2,000 tokens are 0.6 s of prefill; in a tenth of 2 s that takes three.
    seen = snapshot(engine(waiting_requests=6, waiting_tokens=12_000), cold_node_start_s=2.0)
    short = snapshot(engine(waiting_requests=16, waiting_tokens=320))
    cached = replace(SIZING, mix=Mix(2000, 0.1, 128))

    terms = terms_of(seen)

    assert (terms["queue"].replicas, terms["queue_tokens"].replicas) == (1, 3)
    assert terms_of(short)["queue_tokens"].replicas == 1
    assert terms_of(seen, sizing=cached)["queue_tokens"].replicas == 1


def test_a_prompt_is_never_split_over_replicas() -> None:
    # One prompt of 100,000 tokens takes 5 s, on however many.
    def asked(prompts: int) -> int:
        seen = snapshot(engine(waiting_requests=prompts, waiting_tokens=prompts * 1e5), cold_node_start_s=1.0)
        return terms_of(seen)["queue_tokens"].replicas

    assert (asked(1), asked(3)) == (1, 3)


def test_after_a_cold_start_a_backlog_may_take_a_tenth_of_it() -> None:
    # 60 prompts of 1,000 tokens: 3 s of prefill. A replica that takes 60 s to start may take 6 more.
    front = ingress(held_requests=60, held_bytes=60 * 4000)

    slow = terms_of(snapshot(at={"i0": front}, cold_node_start_s=60.0), queue=())
    fast = terms_of(snapshot(at={"i0": front}, cold_node_start_s=10.0), queue=())

    assert (slow["queue_tokens"].replicas, fast["queue_tokens"].replicas) == (1, 3)


def test_a_queue_of_prompts_beyond_the_ttft_target_is_cleared_and_the_target_not_chased() -> None:
    # 10 prompts of 8,000 tokens, 0.4 s of prefill each: no fleet gives any of them its token in 0.2 s.
    seen = snapshot(engine(waiting_requests=10, waiting_tokens=80_000), cold_node_start_s=20.0)

    assert terms_of(seen)["queue_tokens"].replicas == 2  # 4 s of work in a tenth of a cold start
    within = KNOBS.model_copy(update={"ttft_target_s": 0.5})
    assert terms_of(seen, knobs=within)["queue_tokens"].replicas == 2
    # Beyond a tenth of a cold start, the target is what there is to keep: 4 s of work in 4 s.
    relaxed = KNOBS.model_copy(update={"ttft_target_s": 4.0})
    assert terms_of(seen, knobs=relaxed)["queue_tokens"].replicas == 1


# The KV cache.


def test_the_kv_cache_asks_for_room_for_all_that_runs_and_waits() -> None:
    seen = snapshot(engine(running_tokens=150_000, waiting_tokens=40_000), engine())

    assert terms_of(seen)["kv_cache"].replicas == 2  # 190,000 of 180,000 a replica
    assert terms_of(snapshot(engine()))["kv_cache"].replicas == 0
    assert terms_of(snapshot(engine(running_tokens=1)))["kv_cache"].replicas == 1
    # An engine that does not say how large its cache is asks for nothing.
    assert terms_of(snapshot(engine(running_tokens=1e9, kv_cache_tokens=0)))["kv_cache"].replicas == 0


# The forecast.


def remembered(level: float, rise: float, minutes: float) -> Peaks:
    """So many minutes of requests, all of which came at one demand and after one rise."""
    peaks = Peaks()
    for _ in range(round(12 * minutes)):
        peaks = peaks.note(level, rise, 1.0, 12.0, 1.0)
    return peaks


def forecast(now_rps: float, peaks: Peaks, q: float = 0.9) -> Term:
    demand = replace(arriving(now_rps), peaks=peaks)
    knobs = KNOBS.model_copy(update={"forecast_quantile": q})
    return terms_of(snapshot(engine(), cold_node_start_s=75.0), demand=demand, knobs=knobs)["forecast"]


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
def test_demand_may_rise_as_it_has_risen_and_to_what_it_has_been(
    now_rps: float, rise: float, most: float, minutes: float, replicas: int
) -> None:
    assert forecast(now_rps, remembered(most, rise, minutes)).replicas == replicas


def test_a_higher_quantile_needs_more_minutes_before_the_most_seen_is_a_bound() -> None:
    peaks = remembered(level=11.0, rise=9.0, minutes=30)

    # None of thirty minutes was of the highest tenth with a chance of 4 %, of the highest 20th with 21 %.
    assert "11.3 requests/s within" in forecast(9.0, peaks, q=0.9).why
    assert "12.8 requests/s within" in forecast(9.0, peaks, q=0.95).why


@pytest.mark.parametrize(
    ("start_s", "covered"), [(180.0, 0.9), (60.0, 0.9), (15.0, 0.8), (3.75, 0.6), (0.5, 0.6)]
)
def test_the_shorter_a_start_the_more_the_forecast_may_leave_out(start_s: float, covered: float) -> None:
    peaks = Peaks()
    for level in range(1, 101):
        peaks = peaks.note(float(level), 100.0, 1.0, 12.0, 1.0)
    seen = snapshot(engine(), warm_node_start_s=start_s, warm_node=True)
    terms = terms_of(seen, demand=replace(arriving(2.0), peaks=peaks), sizing=replace(SIZING, headroom=0))

    assert f"{covered:.0%} of past requests arrived at" in terms["forecast"].why


def test_the_forecast_says_its_numbers() -> None:
    why = forecast(2.0, remembered(level=4.0, rise=1.0, minutes=10)).why

    assert why.startswith(
        "demand is 2 requests/s and may reach 3.35 requests/s within 75 s, the time a replica "
    )
    assert ": 90% of past requests arrived at 3.92 requests/s or less, after a rise of 1 or less (" in why
    assert why.endswith("(35% of it is added, because only 10 minutes are known), so 2 replicas are needed")

    # Where much is known there is nothing to say of what is not.
    why = forecast(2.0, remembered(level=4.0, rise=1.0, minutes=40)).why
    assert why.endswith("after a rise of 1 or less, so 2 replicas are needed")


def test_the_forecast_can_be_turned_off() -> None:
    off = KNOBS.model_copy(update={"forecast": False})

    assert "forecast" not in terms_of(snapshot(engine()), knobs=off, demand=arriving(9.0))


@pytest.mark.parametrize("seconds", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_cold_start_that_was_not_measured_is_guessed(seconds: float | None) -> None:
    assert snapshot(cold_node_start_s=seconds).horizon_s == 60.0
    assert snapshot(cold_node_start_s=7.5).horizon_s == 7.5


@pytest.mark.parametrize(
    ("warm_node", "warm_s", "cold_s", "horizon_s"),
    [
        (True, 4.0, 90.0, 4.0),
        (False, 4.0, 90.0, 90.0),
        # A node may take longer to import than any warm start has shown, and never less.
        (True, None, 90.0, 90.0),
        (False, 4.0, None, 60.0),
        (False, 70.0, None, 70.0),
    ],
)
def test_the_policy_plans_with_the_start_on_the_kind_of_node_that_the_next_replica_comes_to(
    warm_node: bool, warm_s: float | None, cold_s: float | None, horizon_s: float
) -> None:
    seen = snapshot(warm_node=warm_node, warm_node_start_s=warm_s, cold_node_start_s=cold_s)

    assert seen.horizon_s == horizon_s


# What stands whatever the load.


def standing(seen: Snapshot, knobs: Knobs = KNOBS, **memory: Any) -> dict[str, Term]:
    observation, state = observe(seen, PolicyState(), NOW)
    state = replace(state, **memory)
    return {term.name: term for term in baseline_terms(inputs(seen, observation, state, knobs))}


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

    assert standing(snapshot(cold_node_start_s=399.0), knobs)["schedule"].replicas == 0
    assert standing(snapshot(cold_node_start_s=400.0), knobs)["schedule"].replicas == 5
    assert "schedule" not in standing(snapshot())


# Whatever comes in, a whole and finite number comes out.


def test_no_load_asks_for_more_than_the_largest_number() -> None:
    flood = snapshot(
        engine(waiting_requests=1e14, waiting_tokens=1e14, running_tokens=1e14, kv_cache_tokens=1e-300)
    )
    tiny = KNOBS.model_copy(update={"queue_target_per_replica": 1e-300})

    terms = terms_of(flood, knobs=tiny, demand=arriving(1e15))

    assert {term.replicas for term in terms.values()} == {MOST_REPLICAS}
