import random
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.policy.capacity_model import Mix, StepTime, capacity_rps
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.settings.knobs import Knobs

A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
"""Seconds of a step, and of each sequence, KV token and prefill token in it: a 7B model on an A100."""
MIX = Mix(prompt_tokens=1000, output_tokens=128)
KNOBS = Knobs(ttft_target_s=0.2, itl_target_s=0.025)
NO_LIMIT = 0.0
Sample = tuple[float, float, float, float, float]
"""(steps, step seconds, batch, KV tokens, prefill tokens)"""


def seconds_of_steps(
    truth: StepTime, count: int, noise_s: float = 0.0, batches: tuple[float, float] = (1, 32), seed: int = 1
) -> list[Sample]:
    """1-s means of a replica whose load varies."""
    draw = random.Random(seed)
    samples = []
    for _ in range(count):
        batch = draw.uniform(*batches)
        kv_tokens = batch * draw.uniform(300, 1500)
        prefill = draw.choice((0.0, draw.uniform(0, 400)))
        step_s = truth.decode_s(batch, kv_tokens) + truth.per_prefill_token_s * prefill
        samples.append((1.0 / step_s, step_s + draw.gauss(0, noise_s), batch, kv_tokens, prefill))
    return samples


def learned(samples: list[Sample], fit: StepTimeFit | None = None) -> StepTime:
    """What a fit comes to that sees one sample after the other."""
    return taught(fit or StepTimeFit(), samples).step_time()


def taught(fit: StepTimeFit, samples: list[Sample]) -> StepTimeFit:
    for sample in samples:
        fit = fit.learn([sample])
    return fit


def capacity(step: StepTime) -> float:
    return capacity_rps(step, MIX, KNOBS, NO_LIMIT)


def test_the_prior_is_an_a100_with_a_7b_model() -> None:
    assert astuple(StepTimeFit().step_time()) == pytest.approx(astuple(A100))


@pytest.mark.parametrize(
    "step", [A100, StepTime(0.004, 0.00027, 4.3e-7, 6.4e-5), StepTime(0.064, 4e-5, 5.1e-7, 0.0)]
)
def test_a_fit_returns_its_starting_step_time_before_any_step(step: StepTime) -> None:
    assert astuple(StepTimeFit.starting_with(step).step_time()) == pytest.approx(astuple(step))


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_coefficients_are_recovered_from_noisy_means(factor: float) -> None:
    truth = StepTime(*(value * factor for value in astuple(A100)))

    found = learned(seconds_of_steps(truth, 300, noise_s=0.0005))

    assert found.base_s == pytest.approx(truth.base_s, rel=0.03)
    assert found.per_sequence_s == pytest.approx(truth.per_sequence_s, rel=0.15)
    assert found.per_kv_token_s == pytest.approx(truth.per_kv_token_s, rel=0.15)
    assert found.per_prefill_token_s == pytest.approx(truth.per_prefill_token_s, rel=0.05)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_wrong_prior_costs_little_after_a_minute(factor: float) -> None:
    truth = StepTime(*(value * factor for value in astuple(A100)))

    found = learned(seconds_of_steps(truth, 60, noise_s=0.0005))

    assert capacity(found) == pytest.approx(capacity(truth), rel=0.1)


def test_a_negative_coefficient_becomes_zero() -> None:
    # Steps that get shorter as the batch grows: no engine does that, noise can.
    samples = [(60.0, 0.030 - 0.0005 * batch, float(batch), 0.0, 0.0) for batch in (1, 5, 10, 20) * 50]

    found = learned(samples)

    assert found.per_sequence_s == 0.0
    assert min(astuple(found)) >= 0.0
    assert found.base_s == pytest.approx(0.030 - 0.0005 * 9, rel=0.05)


def test_a_constant_load_keeps_what_other_loads_have_taught() -> None:
    truth = StepTime(0.006, 0.00006, 6e-8, 2.5e-5)
    model = taught(StepTimeFit(), seconds_of_steps(truth, 120))

    alike = (80.0, truth.decode_s(6, 6400) + truth.per_prefill_token_s * 60, 6.0, 6400.0, 60.0)
    later = learned([alike] * 3 * 3600, model)

    assert capacity(later) == pytest.approx(capacity(model.step_time()), rel=0.01)
    assert astuple(later) == pytest.approx(astuple(truth), rel=0.05)


def test_new_hardware_is_learned_within_twenty_minutes() -> None:
    faster = StepTime(*(value / 2 for value in astuple(A100)))
    model = taught(StepTimeFit(), seconds_of_steps(A100, 1800))

    found = learned(seconds_of_steps(faster, 1200, seed=2), model)

    assert capacity(found) == pytest.approx(capacity(faster), rel=0.2)


def test_a_hundred_replicas_at_once_teach_the_same() -> None:
    samples = seconds_of_steps(A100, 100)

    together = StepTimeFit().learn(samples).step_time()

    assert astuple(together) == pytest.approx(astuple(A100), rel=0.1)


step = st.tuples(
    st.floats(0.001, 10_000), st.floats(1e-5, 60), st.floats(0, 10_000), st.floats(0, 1e8), st.floats(0, 1e6)
)


@given(st.lists(st.lists(step, max_size=6), max_size=30))
def test_no_steps_make_a_coefficient_negative_or_not_finite(reports: list[list[Sample]]) -> None:
    model = StepTimeFit()
    for report in reports:
        model = model.learn(report)

    found = model.step_time()
    assert all(0.0 <= value < 1e9 for value in astuple(found))
    assert 0.0 <= capacity_rps(found, MIX, KNOBS, NO_LIMIT) < 1e9
