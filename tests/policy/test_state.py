import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from serve_app.policy.capacity_model import Mix, StepTime
from serve_app.policy.demand import Demand
from serve_app.policy.state import (
    KEPT_IDENTITIES,
    EngineTotals,
    IngressTotals,
    Memory,
    MixSums,
    Need,
    PolicyState,
    replica_part,
    restore,
    with_replica_part,
)
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.settings.knobs import Knobs
from tests.policy.build import NOW, PolicyLoop, engine, ingress, snapshot


def test_before_anything_has_come_the_mix_is_the_prior() -> None:
    assert MixSums().mix() == Mix(512.0, 1.0, 128.0)
    assert MixSums().tokens_per_byte == 0.25


def test_prompts_are_estimated_from_bytes_before_the_first_end() -> None:
    sums = MixSums().add(MixSums(arrivals=10, bytes=80_000), 1.0)

    assert sums.mix().prompt_tokens == 2000  # four bytes a token
    assert sums.mix().output_tokens == 128


def test_the_mix_is_the_mean_of_what_has_finished() -> None:
    sums = MixSums().add(MixSums(10, 20_000, 5_000, 3_000, 10, 90_000), 1.0)

    assert sums.mix() == Mix(2000.0, 0.25, 300.0)
    assert sums.tokens_per_byte == pytest.approx(2000 / 9000)


def test_a_changed_mix_is_seen_within_minutes() -> None:
    """At 3 requests/s, over 5,000 requests, half of a change took twenty minutes to be seen."""
    sums = MixSums()
    for tokens, minutes in ((250, 60), (2000, 4)):
        for _ in range(60 * minutes):
            sums = sums.add(MixSums(3, 3 * tokens, 3 * tokens, 30), 1.0)

    assert sums.mix().prompt_tokens == pytest.approx(2000 - 1750 * 0.135, rel=0.02)  # e^-2 of it is left


def test_lull_keeps_mix_of_last_200_requests() -> None:
    sums = MixSums()
    for _ in range(200):
        sums = sums.add(MixSums(1, 100, 100, 10), 60.0)

    assert 120 < sums.finished < 140  # 200 (1 - 1/e)


@pytest.mark.parametrize(
    "sums",
    [
        MixSums(finished=5, prompt_tokens=0),
        MixSums(finished=5, prompt_tokens=1e15, bytes=1e-9, arrivals=5),
        MixSums(finished=5, prompt_tokens=100, bytes=100),
        MixSums(finished=0.5, arrivals=0.5, bytes=100),
    ],
)
def test_odd_sums_give_a_mix_and_a_ratio_within_reason(sums: MixSums) -> None:
    assert sums.mix().prompt_tokens >= 1
    assert 0.01 <= sums.mix().computed_share <= 1
    assert 0 <= sums.tokens_per_byte <= 1000


def lived() -> PolicyState:
    """A state with something in every field."""
    loop = PolicyLoop(
        Knobs(min_replicas=0, max_replicas=8, downscale_delay_s=5.0, downscale_to_zero_delay_s=60.0)
    )
    for second in range(1, 181):
        busy = engine(
            running_requests=3,
            waiting_requests=2,
            waiting_tokens=800,
            finished_requests_total=3.0 * second,
            finished_prompt_tokens_total=3000.0 * second,
            finished_generation_tokens_total=300.0 * second,
            steps=60,
            step_s=0.013,
            step_batch=4,
            step_kv_tokens=4000,
            itl_count=4000,
            itl_p99_s=0.05,
        )
        front = ingress(arrivals_total=3.0 * second, arrived_bytes_total=12_000.0 * second)
        loop.decide(snapshot(busy, busy, at={"i0": front}))
    loop.decide(
        snapshot(engine(), engine(), at={"i0": ingress(arrivals_total=540, arrived_bytes_total=2_160_000)})
    )
    loop.decide_for(
        120,
        snapshot(engine(), engine(), at={"i0": ingress(arrivals_total=540, arrived_bytes_total=2_160_000)}),
    )
    return loop.state


def test_a_state_comes_back_from_json_as_it_was() -> None:
    state = replace(lived(), started_with=StepTime(0.004, 0.0, 0.0, 1e-5))
    assert state.idle_since is not None
    assert state.demand.buckets
    assert state.engine_totals
    assert state.queue
    assert state.recent_needs
    assert state.demand.histogram.levels
    assert state.demand.histogram.rises
    assert state.late_tokens > 0
    assert state.late_tokens_expected > 0
    assert state.ready_mean > 0

    assert restore(json.loads(json.dumps(asdict(state)))) == state
    assert restore(asdict(state)) == state


def test_interference_is_one_until_late_tokens_are_measured() -> None:
    assert PolicyState().interference == 1.0
    # 3,000 late where 1,000 were expected, and a thousand by which the model is trusted: 4 to 2.
    assert PolicyState(late_tokens=3000.0, late_tokens_expected=1000.0).interference == pytest.approx(2.0)
    assert PolicyState(late_tokens=0.0, late_tokens_expected=9000.0).interference == pytest.approx(0.1)
    # Tokens that are late whatever the model expects are not chased without end.
    assert PolicyState(late_tokens=1e9).interference == 8.0


@pytest.mark.parametrize(
    "damage",
    [
        lambda plain: plain.pop("demand"),
        lambda plain: plain.pop("recent_needs"),
        lambda plain: plain["demand"].pop("histogram"),
        lambda plain: plain.pop("late_tokens"),
        lambda plain: plain["demand"]["histogram"]["levels"].update(many=1.0),
        lambda plain: next(iter(plain["demand"]["histogram"]["rises"].values())).pop("squares"),
        lambda plain: plain.update(since="yesterday"),
        lambda plain: plain.update(learned_headroom=None),
        lambda plain: plain["service"].update(gram=[1.0] * 9),
        lambda plain: plain["service"].update(gram=[0.0] * 16),
        lambda plain: plain.update(queue=[[1.0, 2.0]]),
        lambda plain: plain["engine_totals"].update(e0=[1.0, 2.0]),
        lambda plain: plain["ingress_totals"].update(i0=[1.0]),
    ],
)
def test_a_damaged_or_incomplete_document_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    plain = json.loads(json.dumps(asdict(lived())))
    damage(plain)

    with pytest.raises((TypeError, ValueError, KeyError)):
        restore(plain)


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


def test_the_same_identity_keeps_everything() -> None:
    known, new = Memory(SEVEN, "a 7B"), Memory(SEVEN)

    assert known.of("a 7B") == (known, "")
    assert new.of("a 7B") == (known, "")


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
