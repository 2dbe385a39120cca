import math
from dataclasses import replace
from typing import Any

import pytest

from serve_app.learning.demand import Demand
from serve_app.learning.feedback import measure
from serve_app.learning.learn import digest
from serve_app.learning.observe import observe
from serve_app.learning.peaks import Peaks
from serve_app.learning.state import PolicyState, Waiting
from serve_app.policy.capacity_model import MOST_REPLICAS, Mix, Sizing, StepTime, feasibility
from serve_app.policy.explanation import Term
from serve_app.policy.inputs import Inputs
from serve_app.policy.observation import Observation
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.terms import most_for_a_queue, size
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
    queued = Waiting(NOW, observation.queued_requests, observation.queued_tokens)
    state = replace(state, **{"queue": (queued,), **memory})
    return {term.name: term for term in size(inputs(seen, observation, state, knobs, sizing)).load}


def inputs(
    seen: Snapshot,
    observation: Observation,
    state: PolicyState,
    knobs: Knobs = KNOBS,
    sizing: Sizing = SIZING,
) -> Inputs:
    measured = measure(observation.engines, knobs, feasibility(sizing.step, sizing.mix, knobs).itl_limit_s)
    return digest(seen, knobs, state, observation, measured, sizing, NOW)


# Demand.


def test_demand_asks_for_what_the_rate_needs_by_the_model() -> None:
    demand = terms_of(snapshot(engine()), demand=arriving(7.0))["demand"]

    assert demand.replicas == 3
    assert demand.why == (
        "Load over the last 60 s: 7 requests/s. One replica serves 3 requests/s, so 3 replicas are needed."
    )


def test_what_is_removed_must_not_be_needed_if_the_rate_was_read_too_low() -> None:
    """420 arrivals in a minute are read to 0.34 requests/s: two such errors more are 7.7 requests/s."""

    def kept(rps: float) -> int:
        observation, state = observe(snapshot(engine()), PolicyState(), NOW)
        state = replace(state, queue=(Waiting(NOW, 0, 0),), demand=arriving(rps))
        return size(inputs(snapshot(engine()), observation, state)).kept

    assert (kept(7.0), kept(8.0), kept(8.4)) == (3, 3, 4)
    assert kept(0.0) == 0


# The queue, in requests.


@pytest.mark.parametrize(("waiting", "replicas"), [(0, 0), (1, 1), (8, 1), (9, 2), (24, 3), (25, 4)])
def test_the_queue_asks_for_a_replica_for_every_target_s_worth_begun(waiting: int, replicas: int) -> None:
    assert terms_of(snapshot(engine(waiting_requests=waiting)))["queue"].replicas == replicas


def test_held_and_waiting_requests_are_one_queue() -> None:
    seen = snapshot(engine(waiting_requests=10), at={"i0": ingress(held_requests=7)})

    assert terms_of(seen)["queue"].replicas == 3


def test_only_the_part_of_a_queue_that_has_stood_counts() -> None:
    stood = (Waiting(NOW - 5, 30.0, 0.0), Waiting(NOW - 2, 6.0, 0.0), Waiting(NOW, 40.0, 0.0))

    terms = terms_of(snapshot(engine(waiting_requests=40)), queue=stood)

    assert terms["queue"].replicas == 1


def test_at_zero_replicas_all_of_it_counts_at_once() -> None:
    seen = snapshot(at={"i0": ingress(held_requests=24)})
    observation, state = observe(seen, PolicyState(), NOW)

    assert inputs(seen, observation, state).standing_requests == 24
    assert terms_of(seen, queue=())["queue"].replicas == 3


def test_while_replicas_are_on_their_way_a_queue_asks_for_no_more() -> None:
    waiting = engine(waiting_requests=80, waiting_tokens=80_000)

    coming = terms_of(snapshot(waiting, target=3, cold_node_start_s=20.0))
    there = terms_of(snapshot(waiting, engine(), engine(), cold_node_start_s=20.0))

    # 80 requests are ten replicas' worth.
    assert (coming["queue"].replicas, there["queue"].replicas) == (3, 10)
    assert coming["queue"].why.endswith(
        "10 replicas are needed. While replicas start, the queue asks for 3 replicas at most."
    )


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

    assert terms["queue"].replicas == 3
    assert terms["queue"].why == (
        "The waiting requests need 0.6 s of prefill. One replica may have a queue of 0.2 s, "
        "so 3 replicas are needed."
    )
    assert terms_of(short)["queue"].replicas == 2  # by their number
    assert terms_of(seen, sizing=cached)["queue"].replicas == 1


def test_a_prompt_is_never_split_over_replicas() -> None:
    # One prompt of 100,000 tokens takes 5 s, on however many.
    def asked(prompts: int) -> int:
        seen = snapshot(engine(waiting_requests=prompts, waiting_tokens=prompts * 1e5), cold_node_start_s=1.0)
        return terms_of(seen)["queue"].replicas

    assert (asked(1), asked(3)) == (1, 3)


def test_after_a_cold_start_a_backlog_may_take_a_tenth_of_it() -> None:
    # 8 prompts of 7,500 tokens: 3 s of prefill. A replica that takes 60 s to start may take 6 more.
    front = ingress(held_requests=8, held_bytes=8 * 30_000)

    slow = terms_of(snapshot(at={"i0": front}, cold_node_start_s=60.0), queue=())
    fast = terms_of(snapshot(at={"i0": front}, cold_node_start_s=10.0), queue=())

    assert (slow["queue"].replicas, fast["queue"].replicas) == (1, 3)


def test_a_queue_of_prompts_beyond_the_ttft_target_is_cleared_and_the_target_not_chased() -> None:
    # 8 prompts of 10,000 tokens, 0.5 s of prefill each: no fleet gives any of them its token in 0.2 s.
    seen = snapshot(engine(waiting_requests=8, waiting_tokens=80_000), cold_node_start_s=20.0)

    assert terms_of(seen)["queue"].replicas == 2  # 4 s of work in a tenth of a cold start
    within = KNOBS.model_copy(update={"ttft_target_s": 0.5})
    assert terms_of(seen, knobs=within)["queue"].replicas == 2
    # Beyond a tenth of a cold start, the target is what there is to keep: 4 s of work in 4 s.
    relaxed = KNOBS.model_copy(update={"ttft_target_s": 4.0})
    assert terms_of(seen, knobs=relaxed)["queue"].replicas == 1


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
        peaks = peaks.note(level - rise, level, 1.0, 12.0, 1.0, 12)
    return peaks


def forecast(now_rps: float, peaks: Peaks, q: float = 0.9) -> Term:
    demand = replace(arriving(now_rps), peaks=peaks)
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
def test_demand_may_rise_as_it_has_risen_and_to_what_it_has_been(
    now_rps: float, rise: float, most: float, minutes: float, replicas: int
) -> None:
    assert forecast(now_rps, remembered(most, rise, minutes)).replicas == replicas


def test_a_higher_quantile_needs_more_minutes_before_the_most_seen_is_a_bound() -> None:
    peaks = remembered(level=11.0, rise=9.0, minutes=30)

    # None of thirty minutes was of the highest tenth with a chance of 4 %, of the highest 20th with 21 %.
    assert "a rise to 11.3 requests/s" in forecast(9.0, peaks, q=0.9).why
    assert "a rise to 12.8 requests/s" in forecast(9.0, peaks, q=0.95).why


@pytest.mark.parametrize(
    ("start_s", "covered"), [(180.0, 0.9), (60.0, 0.9), (15.0, 0.8), (3.75, 0.6), (0.5, 0.6)]
)
def test_the_shorter_a_start_the_more_the_forecast_may_leave_out(start_s: float, covered: float) -> None:
    peaks = Peaks()
    for level in range(1, 101):
        peaks = peaks.note(level - 100.0, float(level), 1.0, 12.0, 1.0, 12)
    seen = snapshot(engine(), warm_node_start_s=start_s, warm_node=True)
    terms = terms_of(seen, demand=replace(arriving(2.0), peaks=peaks), sizing=replace(SIZING, headroom=0))

    assert f" For {100 * covered:.0f} % of past requests, the load was no higher." in terms["demand"].why


def test_the_forecast_says_its_numbers() -> None:
    peaks = remembered(level=4.0, rise=1.0, minutes=10)

    assert forecast(2.0, peaks).why.startswith(
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


def test_a_forecast_that_needs_no_more_replicas_is_not_told() -> None:
    why = forecast(0.2, remembered(level=4.0, rise=1.0, minutes=40)).why

    assert (
        why
        == "Load over the last 60 s: 0.2 requests/s. One replica serves 3 requests/s, so 1 replica is needed."
    )


def test_a_rise_is_expected_where_it_has_been_seen_from_and_nowhere_else() -> None:
    """After a busy hour between 15 and 35 requests/s, one a second once kept three replicas for hours."""
    peaks = Peaks()
    for before, level in ((15.0, 35.0), (35.0, 15.0)) * 360:
        peaks = peaks.note(before, level, level, 12.0 * level, 1.0, 12)
    for _ in range(12 * 40):
        peaks = peaks.note(1.0, 1.0, 1.0, 12.0, 1.0, 12)

    assert "a rise to 34.7 requests/s" in forecast(15.0, peaks).why
    assert forecast(1.0, peaks).replicas == 1


def test_the_forecast_can_be_turned_off() -> None:
    off = KNOBS.model_copy(update={"forecast": False})
    demand = replace(arriving(2.0), peaks=remembered(20.0, 20.0, 60))

    assert terms_of(snapshot(engine()), knobs=off, demand=demand)["demand"].replicas == 1
    assert terms_of(snapshot(engine()), demand=demand)["demand"].replicas > 5


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
    state = replace(state, queue=(Waiting(NOW, 0, 0),), **memory)
    return {term.name: term for term in size(inputs(seen, observation, state, knobs)).baseline}


def test_whoever_waits_or_runs_keeps_one_replica() -> None:
    assert standing(snapshot(at={"i0": ingress(held_requests=1)}))["awake"].replicas == 1
    assert standing(snapshot(engine(running_requests=1)), idle_since=NOW - 999)["awake"].replicas == 1


def test_the_last_replica_is_kept_until_the_model_has_been_idle_for_the_delay() -> None:
    assert standing(snapshot(engine()), idle_since=NOW - 299)["awake"].replicas == 1
    assert standing(snapshot(engine()), idle_since=NOW - 300)["awake"].replicas == 0
    assert standing(snapshot(), idle_since=NOW - 10)["awake"].replicas == 0


def test_what_is_not_known_to_be_idle_is_kept_even_without_a_delay() -> None:
    eager = KNOBS.model_copy(update={"downscale_to_zero_delay_s": 0.0})

    assert standing(snapshot(ready=1), knobs=eager, idle_since=None)["awake"].replicas == 1
    assert standing(snapshot(engine()), knobs=eager, idle_since=NOW)["awake"].replicas == 0


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
