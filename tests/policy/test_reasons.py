import json
import math
from typing import Any

import pytest

from serve_app.policy.snapshot import Snapshot
from serve_app.settings.knobs import Knobs
from tests.policy.build import PolicyLoop, engine, ingress, snapshot

KNOBS = Knobs(
    min_replicas=0,
    max_replicas=10,
    headroom=0,
    downscale_delay_s=30,
    downscale_to_zero_delay_s=120,
    forecast=False,
)


def knobs(**changed: Any) -> Knobs:
    return KNOBS.model_copy(update=changed)


def counterfactual(seen: Snapshot, seconds: float = 1, with_knobs: Knobs = KNOBS) -> str:
    return PolicyLoop(with_knobs).decide_for(seconds, seen).explanation.counterfactual


def test_at_zero_the_first_request_brings_it_up() -> None:
    assert counterfactual(snapshot()) == "the target rises at the first request"


def test_a_fleet_goes_up_at_a_queue_or_a_rate_and_the_last_replica_down_after_idle_time() -> None:
    busy = snapshot(engine(running_requests=1))

    assert counterfactual(busy) == (
        "the target rises at 9 waiting requests or above 5.1 requests/s; "
        "it falls to 0 after 120 s without a request"
    )


def test_an_idle_replica_counts_down() -> None:
    assert counterfactual(snapshot(engine()), 21).endswith("; it falls to 0 after 100 s without a request")


def test_bounds_are_said_where_they_are_in_the_way() -> None:
    pinned = knobs(min_replicas=1, max_replicas=1)

    assert counterfactual(snapshot(engine()), 1, pinned) == (
        "the target cannot rise: max_replicas = 1; it cannot fall: min_replicas = 1"
    )


def test_silence_is_said_to_be_in_the_way_of_going_down() -> None:
    assert counterfactual(snapshot(engine(), ready=2)).endswith(
        "; it cannot fall while replicas do not report"
    )


def test_a_fleet_that_is_more_than_enough_says_when_it_can_go_down() -> None:
    busy = snapshot(*[engine(running_requests=1)] * 3)

    # No replica is removed before the load has been observed as long as an idle model is kept: 120 s.
    assert counterfactual(busy, 11).endswith("; it can fall in 110 s")


def test_a_fleet_that_was_needed_a_moment_ago_says_how_long_it_stays() -> None:
    loop = PolicyLoop(knobs(downscale_to_zero_delay_s=0.0))
    loop.decide_for(20, snapshot(*[engine(running_requests=1)] * 3))
    loop.decide_for(10, snapshot(*[engine(running_requests=1, waiting_requests=20)] * 3))

    text = loop.decide_for(5, snapshot(*[engine(running_requests=1)] * 3)).explanation.counterfactual

    assert text.endswith("; it can fall in 25 s")


def test_a_queue_that_may_not_ask_is_not_said_to() -> None:
    coming = snapshot(engine(running_requests=1), target=2)

    assert counterfactual(coming).startswith(
        "the target rises above 10.2 requests/s; a queue asks for no more while replicas start; it "
    )


def test_with_a_forecast_the_rate_is_also_the_one_to_come() -> None:
    text = counterfactual(snapshot(engine(running_requests=1)), with_knobs=knobs(forecast=True))

    assert text.startswith(
        "the target rises at 9 waiting requests or above 5.1 requests/s, arriving or forecast; "
    )


def test_a_fleet_that_is_just_enough_says_below_which_rate() -> None:
    loop = PolicyLoop(KNOBS)
    for second in range(1, 121):
        front = ingress(arrivals_total=8.0 * second, arrived_bytes_total=8 * 2048.0 * second)
        text = loop.decide(snapshot(engine(), engine(), at={"i0": front})).explanation.counterfactual

    assert text.endswith("; it falls after 30 s below 5.1 requests/s")


def notes(with_knobs: Knobs = KNOBS, **signals: float) -> tuple[str, ...]:
    return PolicyLoop(with_knobs).decide(snapshot(engine(running_requests=1, **signals))).explanation.notes


def prefill(median_s: float, high_s: float) -> dict[str, float]:
    return {
        "ttft_count": 50,
        "ttft_prefill_p50_s": median_s,
        "ttft_prefill_p90_s": high_s,
        "ttft_prefill_p95_s": high_s,
        "ttft_prefill_p99_s": high_s,
    }


def test_a_target_within_reach_is_no_news() -> None:
    assert notes(**prefill(0.05, 0.1)) == ()


def test_half_of_the_prompts_out_of_reach_is_said_so() -> None:
    assert notes(**prefill(0.3, 0.4)) == (
        "infeasible: half of the prompts take 0.3 s of prefill or more, and ttft_target_s = 0.2; "
        "replicas cannot change that",
    )


def test_the_percentile_out_of_reach_is_said_so() -> None:
    assert notes(**prefill(0.05, 0.4)) == (
        "infeasible at P95: prefill alone takes 0.4 s, and ttft_target_s = 0.2",
    )


def test_a_mean_request_out_of_reach_by_the_model_is_said_so() -> None:
    # 512 tokens, 37 ms on an empty A100.
    assert notes(knobs(ttft_target_s=0.03), itl_count=100, itl_p50_s=0.01)[0].startswith(
        "infeasible: a mean request takes 0.0371 s to its first token on an empty replica"
    )


def test_an_inter_token_target_below_a_single_sequence_is_said_so() -> None:
    assert notes(knobs(itl_target_s=0.01), itl_count=100, itl_p50_s=0.02) == (
        "infeasible: a single sequence gets a token every 0.0117 s, and itl_target_s = 0.01",
    )


def test_the_numbers_of_a_decision_are_finite_and_plain() -> None:
    busy = engine(
        running_requests=4,
        waiting_requests=2,
        ttft_count=9,
        itl_count=9,
        itl_p95_s=0.02,
        ttft_queue_p95_s=0.3,
    )
    signals = PolicyLoop(KNOBS).decide(snapshot(busy, cold_start_s=70.0)).explanation.signals

    assert signals["running_requests"] == 4
    assert signals["waiting_requests"] == 2
    assert signals["itl_p95_s"] == pytest.approx(0.02)
    assert signals["ttft_queue_p95_s"] == pytest.approx(0.3)
    assert signals["cold_start_s"] == 70.0
    assert signals["replica_capacity_rps"] == pytest.approx(5.10, rel=0.01)
    assert all(math.isfinite(value) for value in signals.values())
    json.dumps(signals, allow_nan=False)


def test_latencies_nobody_observed_are_left_out_of_the_numbers() -> None:
    signals = PolicyLoop(KNOBS).decide(snapshot(engine(), cold_start_s=math.nan)).explanation.signals

    assert {"itl_p95_s", "ttft_queue_p95_s", "ttft_prefill_p95_s", "cold_start_s"}.isdisjoint(signals)
