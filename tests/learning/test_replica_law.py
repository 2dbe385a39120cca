from dataclasses import fields, replace

import pytest

from serve_app.learning import replica_law
from serve_app.learning.demand import Demand
from serve_app.learning.replica_law import law_of, with_law
from serve_app.learning.state import EngineTotals, IngressTotals, MixSums, Need, PolicyState
from serve_app.learning.step_time_fit import StepTimeFit
from serve_app.policy.capacity_model import StepTime
from tests.policy.build import NOW

FRESH = PolicyState()
SUMS = MixSums(
    finished=1000.0,
    prompt_tokens=300_000.0,
    computed_tokens=150_000.0,
    output_tokens=100_000.0,
    arrivals=2000.0,
    bytes=2_400_000.0,
)
LIVED = PolicyState(
    since=NOW - 900,
    demand=Demand((5.0, 9.0), NOW - 5, NOW),
    service=StepTimeFit().learn([(60.0, 0.03, 8.0, 9e3, 10.0)]),
    started_with=StepTime(0.01, 0.0, 0.0, 0.0),
    sums=SUMS,
    learned_headroom=1.5,
    late_tokens=700.0,
    engine_totals={"r1": EngineTotals(NOW, 1.0, 2.0, 3.0, 4.0)},
    ingress_totals={"i1": IngressTotals(2000.0, 2_400_000.0)},
    kv_cache_tokens=9e4,
    peaks=(Need(NOW - 20, 7),),
    last_at=NOW,
)


def test_the_traffic_goes_on_and_the_replica_is_unknown() -> None:
    left = with_law(LIVED, None)

    assert (left.demand, left.ingress_totals, left.last_at) == (LIVED.demand, LIVED.ingress_totals, NOW)
    assert (left.sums.arrivals, left.sums.bytes) == (2000.0, 2_400_000.0)
    assert replace(left, demand=FRESH.demand, ingress_totals={}, last_at=None, sums=FRESH.sums) == FRESH


def test_another_tokenizer_counts_otherwise_so_the_former_mix_is_worth_25_requests() -> None:
    left = with_law(LIVED, None)
    assert left.sums.mix() == LIVED.sums.mix()

    counted = left.sums.add(MixSums(finished=75.0, prompt_tokens=75 * 500.0, computed_tokens=75 * 250.0), 1.0)

    assert counted.mix().prompt_tokens == pytest.approx((300 + 3 * 500) / 4, rel=0.01)


def test_a_law_that_is_used_again_knows_the_replica_and_the_mix_and_not_the_former_traffic() -> None:
    law = law_of(LIVED)
    between = replace(FRESH, demand=Demand((1.0,), NOW, NOW), sums=MixSums(arrivals=10.0, bytes=500.0))

    back = with_law(between, law)

    assert (back.service, back.kv_cache_tokens) == (LIVED.service, 9e4)
    assert (back.learned_headroom, back.late_tokens, back.started_with) == (1.5, 700.0, LIVED.started_with)
    assert back.demand == between.demand
    assert back.sums == replace(SUMS, arrivals=10.0, bytes=500.0)


def test_what_was_going_on_among_the_former_replicas_is_over() -> None:
    back = with_law(FRESH, law_of(LIVED))

    assert (back.since, back.peaks, back.engine_totals) == (None, (), {})


def test_a_law_that_has_seen_no_request_leaves_the_mix_of_the_traffic() -> None:
    assert with_law(LIVED, law_of(FRESH)).sums.mix() == SUMS.mix()


def test_every_field_named_is_one_of_the_state() -> None:
    named = {*replica_law._TRAFFIC, *replica_law._MOMENT}

    assert named <= {field.name for field in fields(PolicyState)}
