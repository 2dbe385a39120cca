from dataclasses import replace

import numpy as np
import pytest

from benchmarks.autoscaling.execute import policy_with_prior, replay_with_prior, scaled_service
from loadtests.traces import ArrayTrace
from replay.defaults import KNOBS
from replay.profile import load_profile
from replay.run import replay
from serve_app.learning.state import PolicyState
from serve_app.learning.step_time_fit import StepTimeFit
from serve_app.policy.snapshot import Snapshot
from serve_app.wire.served_models import ServedModel

MODEL = ServedModel("model", "Engine-model", KNOBS)
NOTHING_SEEN = Snapshot(target=1, ready=1, ingress_ready=1, engines={}, ingress={})


def a_burst() -> ArrayTrace:
    """Four minutes at 2 requests a second, then two at 20, which one replica does not carry."""
    at = np.concatenate([np.arange(0.0, 240.0, 0.5), np.arange(240.0, 360.0, 0.05)])
    return ArrayTrace("burst", at, np.full(len(at), 600), np.full(len(at), 40))


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_scaled_prior_is_every_coefficient_times_the_factor(factor: float) -> None:
    fresh, scaled = StepTimeFit().step_time(), scaled_service(factor).step_time()

    for name in ("base_s", "per_sequence_s", "per_kv_token_s", "per_prefill_token_s"):
        assert getattr(scaled, name) == pytest.approx(factor * getattr(fresh, name)), name
    assert policy_with_prior(factor) is policy_with_prior(factor)


def test_with_the_prior_as_it_is_the_replay_is_the_usual_one() -> None:
    profile = load_profile("a100-80gb")
    usual = replay(a_burst(), policy="ours", profile=profile, seed=3)

    found = replay_with_prior(a_burst(), 1.0, profile, 3)

    assert found.gpu_seconds == usual.gpu_seconds
    assert found.attainment == usual.attainment
    assert found.windows.requests.tolist() == usual.windows.requests.tolist()
    assert found.timeline.target.tolist() == usual.timeline.target.tolist()


def test_the_first_decision_rests_on_the_scaled_prior() -> None:
    capacity = {}
    for factor in (0.5, 1.0, 2.0):
        policy = policy_with_prior(factor)(clock=lambda: 0.0)
        decision, _ = policy.decide(MODEL, NOTHING_SEEN, PolicyState(), 100.0)
        capacity[factor] = decision.explanation.signals["replica_capacity_rps"]

    # Twice as slow a step is less than half the capacity: the latency targets stay where they are.
    assert capacity[2.0] < capacity[1.0] / 2 < capacity[1.0] < capacity[0.5]


def test_what_has_been_learned_is_not_taken_back() -> None:
    policy = policy_with_prior(2.0)(clock=lambda: 0.0)
    learned = StepTimeFit().learn([(1000.0, 0.01, 4.0, 4000.0, 100.0)])
    state = replace(PolicyState(), last_at=99.0, service=learned)

    _, remembered = policy.decide(MODEL, NOTHING_SEEN, state, 100.0)

    assert remembered.service == learned
