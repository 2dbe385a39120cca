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


BUSY = engine(running_requests=1)


@pytest.mark.parametrize(
    ("seen", "seconds", "changed", "begins", "ends"),
    [
        (snapshot(), 1, {}, "the target rises at the first request", "at the first request"),
        (
            snapshot(BUSY), 1, {},
            "the target rises at 9 waiting requests or above 5.1 requests/s; ",
            "; it falls to 0 after 120 s without a request",
        ),
        (snapshot(engine()), 21, {}, "", "; it falls to 0 after 100 s without a request"),
        (
            snapshot(engine()), 1, {"min_replicas": 1, "max_replicas": 1},
            "the target cannot rise: max_replicas = 1; ",
            "; it cannot fall: min_replicas = 1",
        ),
        (snapshot(engine(), ready=3), 1, {}, "", "; it cannot fall while most replicas do not report"),
        # No replica is removed before the load has been observed as long as an idle model is kept: 120 s.
        (snapshot(BUSY, BUSY, BUSY), 11, {}, "", "; it can fall in 110 s"),
        (
            snapshot(BUSY, target=2), 1, {},
            "the target rises above 10.2 requests/s; a queue asks for no more while replicas start; it ",
            "",
        ),
        (
            snapshot(BUSY), 1, {"forecast": True},
            "the target rises at 9 waiting requests or above 5.1 requests/s, arriving or forecast; ",
            "",
        ),
    ],
    ids=["zero", "one", "idle", "pinned", "silent", "more than enough", "starting", "forecast"],
)  # fmt: skip
def test_what_would_change_the_target_is_said(
    seen: Snapshot, seconds: float, changed: dict[str, Any], begins: str, ends: str
) -> None:
    text = PolicyLoop(knobs(**changed)).decide_for(seconds, seen).explanation.counterfactual

    assert text.startswith(begins)
    assert text.endswith(ends)


def test_a_fleet_that_was_needed_a_moment_ago_says_how_long_it_stays() -> None:
    loop = PolicyLoop(knobs(downscale_to_zero_delay_s=0.0))
    loop.decide_for(20, snapshot(*[engine(running_requests=1)] * 3))
    loop.decide_for(10, snapshot(*[engine(running_requests=1, waiting_requests=20)] * 3))

    text = loop.decide_for(5, snapshot(*[engine(running_requests=1)] * 3)).explanation.counterfactual

    assert text.endswith("; it can fall in 25 s")


def test_a_fleet_that_is_just_enough_says_below_which_rate() -> None:
    loop = PolicyLoop(KNOBS)
    for second in range(1, 121):
        front = ingress(arrivals_total=8.0 * second, arrived_bytes_total=8 * 2048.0 * second)
        text = loop.decide(snapshot(engine(), engine(), at={"i0": front})).explanation.counterfactual

    assert text.endswith("; it falls after 30 s below 4.55 requests/s")


def prefill(median_s: float, high_s: float) -> dict[str, float]:
    high = {f"ttft_prefill_p{p}_s": high_s for p in (90, 95, 99)}
    return {"ttft_count": 50, "ttft_prefill_p50_s": median_s, **high}


@pytest.mark.parametrize(
    ("changed", "signals", "note"),
    [
        ({}, prefill(0.05, 0.1), ""),  # within reach
        (
            {}, prefill(0.3, 0.4),
            "infeasible: half of the prompts take 0.3 s of prefill or more, and ttft_target_s = 0.2; "
            "replicas cannot change that",
        ),
        ({}, prefill(0.05, 0.4), "infeasible at P95: prefill alone takes 0.4 s, and ttft_target_s = 0.2"),
        (
            {"ttft_target_s": 0.03}, {"itl_count": 100, "itl_p50_s": 0.01},  # 512 tokens on an empty A100
            "infeasible: a mean request takes 0.0371 s to its first token on an empty replica, "
            "and ttft_target_s = 0.03; the fleet is sized for 0.0557 s",
        ),
        (
            {"itl_target_s": 0.01}, {"itl_count": 100, "itl_p50_s": 0.02},
            "infeasible: a single sequence gets a token every 0.0117 s, and itl_target_s = 0.01; "
            "the fleet is sized for 0.0146 s",
        ),
    ],
)  # fmt: skip
def test_a_target_that_no_fleet_reaches_is_said_so(
    changed: dict[str, Any], signals: dict[str, float], note: str
) -> None:
    seen = snapshot(engine(running_requests=1, **signals))

    assert "".join(PolicyLoop(knobs(**changed)).decide(seen).explanation.notes) == note


def test_the_numbers_of_a_decision_are_finite_and_plain() -> None:
    busy = engine(
        running_requests=4,
        waiting_requests=2,
        ttft_count=9,
        itl_count=9,
        itl_p95_s=0.02,
        ttft_queue_p95_s=0.3,
    )
    seen = snapshot(busy, warm_node=True, warm_node_start_s=4.0, cold_node_start_s=70.0)
    signals = PolicyLoop(KNOBS).decide(seen).explanation.signals

    assert signals["running_requests"] == 4
    assert signals["waiting_requests"] == 2
    assert signals["itl_p95_s"] == pytest.approx(0.02)
    assert signals["ttft_queue_p95_s"] == pytest.approx(0.3)
    assert (signals["warm_node"], signals["cold_start_s"]) == (1.0, 4.0)
    assert (signals["warm_node_start_s"], signals["cold_node_start_s"]) == (4.0, 70.0)
    assert signals["replica_capacity_rps"] == pytest.approx(5.10, rel=0.01)
    assert all(math.isfinite(value) for value in signals.values())
    json.dumps(signals, allow_nan=False)


def test_latencies_nobody_observed_are_left_out_of_the_numbers() -> None:
    signals = PolicyLoop(KNOBS).decide(snapshot(engine(), cold_node_start_s=math.nan)).explanation.signals

    assert {"itl_p95_s", "ttft_queue_p95_s", "ttft_prefill_p95_s", "cold_start_s"}.isdisjoint(signals)
