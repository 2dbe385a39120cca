import json
import math
from typing import Any

import pytest

from serve_app.policy.decide import Clamp, Decision, Term
from serve_app.policy.reasons import are
from serve_app.policy.reports import Snapshot
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
        (snapshot(), 1, {}, "The target rises at the first request.", ""),
        (
            snapshot(BUSY), 1, {},
            "The target rises at 9 waiting requests, or when the load exceeds 5.1 requests/s. ",
            " The target falls to 0 replicas in 120 s if no request comes.",
        ),
        (
            snapshot(engine()), 21, {}, "",
            " The target falls to 0 replicas in 100 s if no request comes.",
        ),
        (
            snapshot(engine()), 1, {"min_replicas": 1, "max_replicas": 1},
            "The target cannot rise above max_replicas = 1. ",
            " The target cannot fall below min_replicas = 1.",
        ),
        (
            snapshot(engine(), ready=3), 1, {}, "",
            " The target cannot fall while most replicas do not report.",
        ),
        # No replica is removed before the load has been observed as long as an idle model is kept: 120 s.
        (snapshot(BUSY, BUSY, BUSY), 11, {}, "", " The target can fall in 110 s."),
        (
            snapshot(BUSY, target=2), 1, {},
            "The target rises when the load exceeds 10.2 requests/s. A queue asks for no more replicas while "
            "replicas start. The target ",
            "",
        ),
        (
            snapshot(BUSY), 1, {"forecast": True},
            "The target rises at 9 waiting requests, or when load or forecast exceeds 5.1 requests/s. ",
            "",
        ),
    ],
    ids=["zero", "one", "idle", "pinned", "silent", "more than enough", "starting", "forecast"],
)  # fmt: skip
def test_counterfactual_says_when_the_target_changes(
    seen: Snapshot, seconds: float, changed: dict[str, Any], begins: str, ends: str
) -> None:
    text = PolicyLoop(knobs(**changed)).decide_for(seconds, seen).counterfactual

    assert text.startswith(begins)
    assert text.endswith(ends)


def test_counterfactual_says_how_long_a_recent_need_keeps_replicas() -> None:
    loop = PolicyLoop(knobs(downscale_to_zero_delay_s=0.0))
    loop.decide_for(20, snapshot(*[engine(running_requests=1)] * 3))
    loop.decide_for(10, snapshot(*[engine(running_requests=1, waiting_requests=20)] * 3))

    text = loop.decide_for(5, snapshot(*[engine(running_requests=1)] * 3)).counterfactual

    assert text.endswith(" The target can fall in 25 s.")


def test_counterfactual_says_below_which_load_a_replica_goes() -> None:
    loop = PolicyLoop(KNOBS)
    for second in range(1, 121):
        front = ingress(arrivals_total=8.0 * second, arrived_bytes_total=8 * 2048.0 * second)
        text = loop.decide(snapshot(engine(), engine(), at={"i0": front})).counterfactual

    assert text.endswith(" The target falls when the load stays below 4.55 requests/s for 30 s.")


def prefill(median_s: float, high_s: float) -> dict[str, float]:
    high = {f"ttft_prefill_p{p}_s": high_s for p in (90, 95, 99)}
    return {"ttft_count": 50, "ttft_prefill_p50_s": median_s, **high}


@pytest.mark.parametrize(
    ("changed", "signals", "note"),
    [
        ({}, prefill(0.05, 0.1), ""),  # within reach
        (
            {}, prefill(0.3, 0.4),
            "infeasible: Half of the prompts take 0.3 s of prefill or more. "
            "The target ttft_target_s is 0.2 s. More replicas cannot shorten a prefill.",
        ),
        (
            {}, prefill(0.05, 0.4),
            "infeasible at P95: The P95 of prefill alone is 0.4 s. The target ttft_target_s is 0.2 s.",
        ),
        (
            {"ttft_target_s": 0.03}, {"itl_count": 100, "itl_p50_s": 0.01},  # 512 tokens on an empty A100
            "infeasible: A mean request on an empty replica gets its first token after 0.0371 s. "
            "The target ttft_target_s is 0.03 s, so the fleet is sized for 0.0557 s.",
        ),
        (
            {"itl_target_s": 0.01}, {"itl_count": 100, "itl_p50_s": 0.02},
            "infeasible: A single sequence on an empty replica gets a token every 0.0117 s. "
            "The target itl_target_s is 0.01 s, so the fleet is sized for 0.0146 s.",
        ),
    ],
)  # fmt: skip
def test_note_names_a_target_that_no_fleet_reaches(
    changed: dict[str, Any], signals: dict[str, float], note: str
) -> None:
    seen = snapshot(engine(running_requests=1, **signals))

    assert "".join(PolicyLoop(knobs(**changed)).decide(seen).notes) == note


def test_signals_are_finite_numbers() -> None:
    busy = engine(
        running_requests=4,
        waiting_requests=2,
        ttft_count=9,
        itl_count=9,
        itl_p95_s=0.02,
        ttft_queue_p95_s=0.3,
    )
    seen = snapshot(busy, warm_node=True, warm_node_start_s=4.0, cold_node_start_s=70.0)
    signals = PolicyLoop(KNOBS).decide(seen).signals

    assert signals["running_requests"] == 4
    assert signals["waiting_requests"] == 2
    assert signals["itl_p95_s"] == pytest.approx(0.02)
    assert signals["ttft_queue_p95_s"] == pytest.approx(0.3)
    assert (signals["warm_node"], signals["cold_start_s"]) == (1.0, 4.0)
    assert (signals["warm_node_start_s"], signals["cold_node_start_s"]) == (4.0, 70.0)
    assert signals["replica_capacity_rps"] == pytest.approx(5.10, rel=0.01)
    assert all(math.isfinite(value) for value in signals.values())
    json.dumps(signals, allow_nan=False)


def test_signals_leave_out_latencies_without_observations() -> None:
    signals = PolicyLoop(KNOBS).decide(snapshot(engine(), cold_node_start_s=math.nan)).signals

    assert {"itl_p95_s", "ttft_queue_p95_s", "ttft_prefill_p95_s", "cold_start_s"}.isdisjoint(signals)


def test_reason_of_an_idle_model_begins_with_the_idle_time() -> None:
    loop = PolicyLoop(knobs(downscale_delay_s=60))
    loop.decide_for(10, snapshot(*[engine(running_requests=1, waiting_requests=20)] * 3))

    kept = loop.decide_for(13, snapshot(*[engine()] * 3))
    asleep = PolicyLoop(KNOBS).decide_for(400, snapshot())

    assert (kept.binding, asleep.binding) == ("delay", "idle")
    assert kept.reason.startswith("delay: The model has been idle for 12 s. ")
    assert asleep.reason.startswith("idle: The model has been idle for 399 s. ")


def test_decision_document_is_json_with_rounded_numbers() -> None:
    made = Decision(
        target=3,
        wanted=3,
        binding="queue",
        reason="queue: 24 requests are waiting.",
        counterfactual="The target rises at 25 waiting requests.",
        terms=(Term("queue", 3, "24 requests are waiting."),),
        clamps=(Clamp("bounds", "max_replicas allows 3 replicas."),),
        signals={"arrivals_30s_rps": 1 / 3, "warm_node": True},
        ages_s={"i0": 0.123456},
        notes=("a note",),
    )

    # `warm_node` is a number: the signals of a record are read as numbers, as the gauges are.
    assert json.dumps(made.document()) == (
        '{"binding": "queue", "reason": "queue: 24 requests are waiting.", '
        '"counterfactual": "The target rises at 25 waiting requests.", '
        '"terms": [{"name": "queue", "replicas": 3, "why": "24 requests are waiting."}], '
        '"clamps": [{"name": "bounds", "effect": "max_replicas allows 3 replicas."}], '
        '"signals": {"arrivals_30s_rps": 0.3333, "warm_node": 1.0}, '
        '"ages_s": {"i0": 0.1235}, "notes": ["a note"]}'
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "no replica is"), (0.4, "no replica is"), (1, "1 replica is"), (24.0, "24 replicas are")],
)
def test_numbers_agree_with_their_noun_and_verb(number: float, words: str) -> None:
    assert are(number, "replica") == words
