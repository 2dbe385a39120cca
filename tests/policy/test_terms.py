import math
from dataclasses import replace
from typing import Any

import pytest

from serve_app.policy.capacity_model import MOST_REPLICAS, Mix, Sizing, StepTime
from serve_app.policy.decide import Term, decide
from serve_app.policy.demand import Demand, DemandHistogram
from serve_app.policy.inputs import Inputs, learn
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
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


def inputs(seen: Snapshot, *, knobs: Knobs = KNOBS, sizing: Sizing = SIZING, **memory: Any) -> Inputs:
    """The inputs of a decision about replicas of known capacity, with fields of the memory."""
    found, _ = learn(seen, knobs, replace(PolicyState(), **memory), NOW)
    return replace(found, sizing=sizing)


def terms_of(seen: Snapshot, **rest: Any) -> dict[str, Term]:
    return {term.name: term for term in decide(inputs(seen, **rest)).terms}


def waiting(requests: float, tokens: float = 0.0, start_s: float = 60.0, **rest: Any) -> Snapshot:
    """One replica with a queue."""
    first = engine(waiting_requests=requests, waiting_tokens=tokens)
    return snapshot(first, cold_node_start_s=start_s, **rest)


def tokens(running: float, waits: float = 0.0) -> Snapshot:
    return snapshot(engine(running_tokens=running, waiting_tokens=waits), engine())


@pytest.mark.parametrize(
    ("term", "seen", "replicas"),
    [
        # The queue by requests: one replica for each 8.
        *[
            ("queue", waiting(n), replicas)
            for n, replicas in ((0, 0), (1, 1), (8, 1), (9, 2), (24, 3), (25, 4))
        ],
        # By prefill: 6 prompts of 2,000 tokens are 0.6 s. A tenth of a 2 s start is 0.2 s.
        ("queue", waiting(6, 12_000, start_s=2.0), 3),
        ("queue", waiting(16, 320, start_s=2.0), 2),
        # A prompt of 100,000 tokens takes 5 s, on however many replicas.
        ("queue", waiting(1, 1e5, start_s=1.0), 1),
        ("queue", waiting(3, 3e5, start_s=1.0), 3),
        # No fleet gives 10,000 tokens their first token in 0.2 s. 4 s of work may take a tenth of 20 s.
        ("queue", waiting(8, 80_000, start_s=20.0), 2),
        # 8 prompts of 7,500 tokens at zero are 3 s of prefill. A start of 60 s allows 6 s, one of 10 s 1 s.
        *[
            ("queue", snapshot(at={"i0": ingress(held_requests=8, held_bytes=2.4e5)}, cold_node_start_s=s), n)
            for s, n in ((60.0, 1), (10.0, 3))
        ],
        # The KV cache: 180,000 of a replica's 200,000 tokens are used. An unknown size asks for nothing.
        ("kv_cache", tokens(150_000, 40_000), 2),
        ("kv_cache", tokens(0), 0),
        ("kv_cache", tokens(1), 1),
        ("kv_cache", snapshot(engine(running_tokens=1e9, kv_cache_tokens=0)), 0),
        ("awake", snapshot(at={"i0": ingress(held_requests=1)}), 1),
        ("awake", snapshot(engine(running_requests=1)), 1),
    ],
)
def test_term_needs_the_replicas_of_its_load(term: str, seen: Snapshot, replicas: int) -> None:
    assert terms_of(seen)[term].replicas == replicas


@pytest.mark.parametrize(("target_s", "replicas"), [(0.5, 2), (4.0, 1)])
def test_queue_may_last_the_ttft_target(target_s: float, replicas: int) -> None:
    knobs = KNOBS.model_copy(update={"ttft_target_s": target_s})

    assert terms_of(waiting(8, 80_000, start_s=20.0), knobs=knobs)["queue"].replicas == replicas


def test_cached_prompts_need_less_prefill() -> None:
    cached = replace(SIZING, mix=Mix(2000, 0.1, 128))

    assert terms_of(waiting(6, 12_000, start_s=2.0), sizing=cached)["queue"].replicas == 1


def test_terms_say_why() -> None:
    demand = terms_of(snapshot(engine()), demand=arriving(7.0))["demand"]
    queue = terms_of(waiting(6, 12_000, start_s=2.0))["queue"]

    assert (demand.replicas, demand.why) == (
        3,
        "Load over the last 60 s: 7 requests/s. One replica serves 3 requests/s, so 3 replicas are needed.",
    )
    assert queue.why == (
        "The waiting requests need 0.6 s of prefill. One replica may have a queue of 0.2 s, "
        "so 3 replicas are needed."
    )


def test_scale_down_allows_for_a_rate_read_too_low() -> None:
    """420 arrivals in a minute are read to 0.34 requests/s: two such errors more are 7.7 requests/s."""
    decisions = [decide(inputs(snapshot(engine()), demand=arriving(rps))) for rps in (7.0, 8.0, 8.4, 0.0)]

    assert [decision.recent_needs[-1].replicas for decision in decisions] == [3, 3, 4, 0]


def test_queue_asks_for_no_more_while_replicas_start() -> None:
    busy = engine(waiting_requests=80, waiting_tokens=80_000)

    coming = terms_of(snapshot(busy, target=3, cold_node_start_s=20.0))
    there = terms_of(snapshot(busy, engine(), engine(), cold_node_start_s=20.0))

    # 80 requests are ten replicas' worth.
    assert (coming["queue"].replicas, there["queue"].replicas) == (3, 10)
    assert coming["queue"].why.endswith(
        "10 replicas are needed. While replicas start, the queue asks for 3 replicas at most."
    )


def test_at_zero_a_queue_is_bounded_after_the_upscale_delay() -> None:
    seen = snapshot(at={"i0": ingress(held_requests=80)}, target=2)
    knobs = KNOBS.model_copy(update={"upscale_delay_s": 5.0})

    most = [inputs(seen, knobs=knobs, woken_at=NOW - woken_s).most_for_queue for woken_s in (5.0, 5.1)]

    assert most == [MOST_REPLICAS, 2]


# The forecast.


def remembered(level: float, rise: float, minutes: float) -> DemandHistogram:
    """So many minutes of requests, all of which came at one demand and after one rise."""
    histogram = DemandHistogram()
    for _ in range(round(12 * minutes)):
        histogram = histogram.note(level - rise, level, 1.0, 12.0, 1.0, 12)
    return histogram


def forecast(now_rps: float, histogram: DemandHistogram, start_s: float = 75.0, **knobs: Any) -> Term:
    demand = replace(arriving(now_rps), histogram=histogram)
    changed = KNOBS.model_copy(update=knobs)
    return terms_of(snapshot(engine(), cold_node_start_s=start_s), demand=demand, knobs=changed)["demand"]


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
    histogram = remembered(most, rise, minutes)

    assert forecast(now_rps, histogram).replicas == replicas
    assert forecast(now_rps, histogram, forecast=False).replicas == math.ceil(now_rps / 3.0)


@pytest.mark.parametrize(
    ("start_s", "covered"), [(180.0, 0.9), (60.0, 0.9), (15.0, 0.8), (3.75, 0.6), (0.5, 0.6)]
)
def test_forecast_of_a_shorter_start_covers_fewer_requests(start_s: float, covered: float) -> None:
    histogram = DemandHistogram()
    for level in range(1, 101):
        histogram = histogram.note(level - 100.0, float(level), 1.0, 12.0, 1.0, 12)

    why = forecast(2.0, histogram, start_s).why

    assert f" For {100 * covered:.0f} % of past requests, the load was no higher." in why


@pytest.mark.parametrize(
    ("now_rps", "level", "rise", "minutes", "why"),
    [
        (
            2.0, 4.0, 1.0, 10,
            "Load over the last 60 s: 2 requests/s. "
            "Allowed for while a replica starts (75 s): a rise to 3.35 requests/s. "
            "For 90 % of past requests at a similar load, the load rose no more. "
            "Only 10 minutes of traffic are known, so the rise includes 0.35 requests/s more. "
            "One replica serves",
        ),
        (0.2, 40.0, 10.0, 10, ". For 90 % of past requests, the load rose no more. "),
        # After half an hour there is nothing to say of what is not known.
        (
            3.0, 4.0, 1.0, 40,
            "(75 s): a rise to 3.93 requests/s. For 90 % of past requests, the load was no higher. One",
        ),
        # A forecast that adds no replica is not explained.
        (
            0.2, 4.0, 1.0, 40,
            "Load over the last 60 s: 0.2 requests/s. One replica serves 3 requests/s, so 1 replica is",
        ),
    ],
)  # fmt: skip
def test_demand_explains_its_forecast_with_numbers(
    now_rps: float, level: float, rise: float, minutes: float, why: str
) -> None:
    assert why in forecast(now_rps, remembered(level, rise, minutes)).why


def test_a_higher_quantile_adds_more_rise_while_little_is_known() -> None:
    histogram = remembered(level=11.0, rise=9.0, minutes=30)

    # None of thirty minutes was of the highest tenth with a chance of 4 %, of the highest 20th with 21 %.
    assert "a rise to 11.3 requests/s" in forecast(9.0, histogram, forecast_quantile=0.9).why
    assert "a rise to 12.8 requests/s" in forecast(9.0, histogram, forecast_quantile=0.95).why


# Times of the snapshot, and the terms that depend on time.


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


EAGER = KNOBS.model_copy(update={"downscale_to_zero_delay_s": 0.0})


@pytest.mark.parametrize(
    ("seen", "knobs", "idle_s", "replicas"),
    [
        (snapshot(engine()), KNOBS, 299, 1),
        (snapshot(engine()), KNOBS, 300, 0),
        (snapshot(engine(running_requests=1)), KNOBS, 999, 1),
        (snapshot(), KNOBS, 10, 0),
        (snapshot(ready=1), EAGER, None, 1),  # not known to be idle
        (snapshot(engine()), EAGER, 0, 0),
    ],
)
def test_last_replica_stays_until_the_idle_delay_is_over(
    seen: Snapshot, knobs: Knobs, idle_s: float | None, replicas: int
) -> None:
    since = None if idle_s is None else NOW - idle_s

    assert terms_of(seen, knobs=knobs, idle_since=since)["awake"].replicas == replicas


@pytest.mark.parametrize(
    ("start_s", "given_s", "window_s"),
    [(1.0, None, 10.0), (3.0, None, 12.0), (75.0, None, 60.0), (3.0, 90.0, 90.0)],
)
def test_scale_down_window_defaults_to_four_starts(
    start_s: float, given_s: float | None, window_s: float
) -> None:
    knobs = KNOBS.model_copy(update={"downscale_delay_s": given_s})

    assert inputs(snapshot(cold_node_start_s=start_s), knobs=knobs).scale_down_window_s == window_s
