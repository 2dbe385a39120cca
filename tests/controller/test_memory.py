from dataclasses import fields, replace

import pytest

from serve_app.controller import memory as memory_module
from serve_app.controller.memory import KEPT_IDENTITIES, Memory, replica_part, with_replica_part
from serve_app.learning.demand import Demand
from serve_app.learning.state import EngineTotals, IngressTotals, MixSums, PolicyState
from serve_app.learning.step_time_fit import StepTimeFit
from serve_app.policy.capacity_model import StepTime
from serve_app.policy.inputs import Need
from tests.policy.build import NOW

SEVEN = PolicyState(learned_headroom=0.9, kv_cache_tokens=2e5, demand=Demand((8.0,), 5.0, 5.0))


def test_other_replicas_start_without_the_figures_of_former_ones() -> None:
    memory, news = Memory(SEVEN, "a 7B").of("a 70B")

    assert (memory.identity, memory.state.learned_headroom, memory.state.kv_cache_tokens) == (
        "a 70B",
        0.0,
        0.0,
    )
    assert memory.state.demand == SEVEN.demand
    assert news == "The model is now 'a 70B'. Nothing learned of 'a 7B' is used."


def test_a_model_that_comes_back_finds_its_figures_again() -> None:
    seventy, _ = Memory(SEVEN, "a 7B").of("a 70B")
    back, news = seventy.of("a 7B")

    assert (back.state.learned_headroom, back.state.kv_cache_tokens) == (0.9, 2e5)
    assert [identity for identity, _ in back.former] == ["a 70B"]
    assert news == "The model is 'a 7B' again. The figures learned of it are used again."


def test_the_same_or_unknown_identity_keeps_everything() -> None:
    known, unknown = Memory(SEVEN, "a 7B"), Memory(SEVEN)

    assert known.of("a 7B") == known.of("") == (known, "")
    assert unknown.of("a 7B") == (known, "")


def test_only_the_newest_identities_are_kept() -> None:
    memory = Memory(SEVEN, "0")
    for number in range(1, 10):
        memory, _ = memory.of(str(number))

    assert [identity for identity, _ in memory.former] == ["8", "7", "6"]
    assert KEPT_IDENTITIES == 4


# The parts of a state.

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
    recent_needs=(Need(NOW - 20, 7),),
    last_at=NOW,
)


def test_other_replicas_keep_the_traffic_and_know_nothing_of_themselves() -> None:
    left = with_replica_part(LIVED, None)

    assert (left.demand, left.ingress_totals, left.last_at) == (LIVED.demand, LIVED.ingress_totals, NOW)
    assert (left.sums.arrivals, left.sums.bytes) == (2000.0, 2_400_000.0)
    assert replace(left, demand=FRESH.demand, ingress_totals={}, last_at=None, sums=FRESH.sums) == FRESH


def test_the_mix_of_a_former_model_is_worth_25_requests() -> None:
    left = with_replica_part(LIVED, None)
    assert left.sums.mix() == LIVED.sums.mix()

    counted = left.sums.add(MixSums(finished=75.0, prompt_tokens=75 * 500.0, computed_tokens=75 * 250.0), 1.0)

    assert counted.mix().prompt_tokens == pytest.approx((300 + 3 * 500) / 4, rel=0.01)


def test_replicas_used_again_know_their_speed_and_their_mix() -> None:
    replica = replica_part(LIVED)
    between = replace(FRESH, demand=Demand((1.0,), NOW, NOW), sums=MixSums(arrivals=10.0, bytes=500.0))

    back = with_replica_part(between, replica)

    assert (back.service, back.kv_cache_tokens) == (LIVED.service, 9e4)
    assert (back.learned_headroom, back.late_tokens, back.started_with) == (1.5, 700.0, LIVED.started_with)
    assert back.demand == between.demand
    assert back.sums == replace(SUMS, arrivals=10.0, bytes=500.0)


def test_delays_of_former_replicas_are_forgotten() -> None:
    back = with_replica_part(FRESH, replica_part(LIVED))

    assert (back.since, back.recent_needs, back.engine_totals) == (None, (), {})


def test_replicas_without_requests_take_the_mix_of_the_traffic() -> None:
    assert with_replica_part(LIVED, replica_part(FRESH)).sums.mix() == SUMS.mix()


def test_every_named_field_is_a_field_of_the_state() -> None:
    named = {*memory_module._TRAFFIC, *memory_module._MOMENT}

    assert named <= {field.name for field in fields(PolicyState)}
