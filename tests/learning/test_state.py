import json
from collections.abc import Callable
from typing import Any

import pytest

from serve_app.learning.state import MixSums, PolicyState, restore
from serve_app.policy.capacity_model import Mix, StepTime
from serve_app.settings.knobs import Knobs
from tests.policy.build import PolicyLoop, engine, ingress, snapshot


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


def test_old_requests_fade_from_the_mix() -> None:
    sums = MixSums().add(MixSums(5000, 5000 * 100, 5000 * 100, 5000 * 10), 1.0)

    half = sums.add(MixSums(2500, 2500 * 300, 2500 * 300, 2500 * 10), 60.0)
    all_ = sums.add(MixSums(5000, 5000 * 300, 5000 * 300, 5000 * 10), 120.0)

    assert half.mix().prompt_tokens == pytest.approx(200)
    assert all_.mix().prompt_tokens == pytest.approx(300)


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
    state = lived()
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

    assert restore(json.loads(json.dumps(state.document()))) == state
    assert restore(state.document()) == state


def test_a_fresh_state_comes_back_too() -> None:
    assert restore(json.loads(json.dumps(PolicyState().document()))) == PolicyState()


def test_what_a_fit_began_with_comes_back() -> None:
    state = PolicyState(started_with=StepTime(0.004, 0.0, 0.0, 1e-5))

    assert restore(json.loads(json.dumps(state.document()))) == state


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
    plain = json.loads(json.dumps(lived().document()))
    damage(plain)

    with pytest.raises((TypeError, ValueError, KeyError)):
        restore(plain)


def test_a_document_of_an_earlier_version_is_restored() -> None:
    """Two fields were called `peaks`, and a field was removed."""
    state = lived()
    plain = json.loads(json.dumps(state.document()))
    plain["peaks"] = plain.pop("recent_needs")
    plain["demand"]["peaks"] = plain["demand"].pop("histogram")
    plain["daily"] = {"closed": [1.0, None], "filling": 2.0}

    assert restore(plain) == state
