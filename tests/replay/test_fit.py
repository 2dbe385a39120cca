from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.fit import LEAST_SAMPLES, FitError, StepSample, fit
from serve_app.policy.capacity_model import StepTime

A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
LAPTOP = StepTime(0.002, 0.00003, 0.0, 1.5e-5)


def seconds(step: StepTime, batch: float, kv_tokens: float, prefill: float) -> float:
    return step.decode_s(batch, kv_tokens) + step.per_prefill_token_s * prefill


def steps(step_time: StepTime, count: int = 80, noise: float = 0.0, seed: int = 1) -> list[StepSample]:
    """Steps by `step_time` under loads as a sweep makes them, each off by a factor of about 1 +- `noise`."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        batch = float(random.choice([1, 8, 64]))
        kv_tokens = batch * float(random.choice([60, 400, 2100]))
        prefill = float(random.choice([0, 0, 30, 600, 2000])) * random.random()
        exact = seconds(step_time, batch, kv_tokens, prefill)
        made.append(StepSample(exact * float(np.exp(noise * random.normal())), batch, kv_tokens, prefill))
    return made


def errors(step_time: StepTime, found: StepTime) -> list[float]:
    """Relative errors of what the two step_times say of typical steps."""
    loads = [(1.0, 60.0, 0.0), (64.0, 25_000.0, 0.0), (8.0, 16_000.0, 500.0), (0.0, 4000.0, 2000.0)]
    return [abs(seconds(found, *load) / seconds(step_time, *load) - 1.0) for load in loads]


step_times = st.builds(
    StepTime, st.floats(0.001, 0.1), st.floats(0.0, 0.001), st.floats(0.0, 1e-6), st.floats(1e-6, 5e-4)
)


@settings(max_examples=40, deadline=None)
@given(step_time=step_times, seed=st.integers(0, 10_000))
def test_known_coefficients_come_back_under_noise(step_time: StepTime, seed: int) -> None:
    found = fit(steps(step_time, 200, noise=0.05, seed=seed))

    # A step of a prompt alone is none of the samples. If it takes 4 ms, it was 10.2 % off once.
    assert max(errors(step_time, found.step)) < 0.15
    for name in ("base_s", "per_sequence_s", "per_kv_token_s", "per_prefill_token_s"):
        off = abs(getattr(found.step, name) - getattr(step_time, name))
        assert off <= 6.0 * getattr(found.standard_error, name) + 1e-9, name


def test_noise_does_not_bias_the_fit() -> None:
    ratios = [
        fit(steps(A100, 200, noise=0.2, seed=seed)).step.decode_s(8.0, 3200.0) / A100.decode_s(8.0, 3200.0)
        for seed in range(12)
    ]

    assert float(np.mean(ratios)) == pytest.approx(1.0, abs=0.03)


def test_outliers_do_not_count() -> None:
    samples = steps(A100, 100, noise=0.02)
    for index in range(0, 100, 12):
        samples[index] = replace(samples[index], step_s=samples[index].step_s * 10)

    found = fit(samples)

    assert max(errors(A100, found.step)) < 0.03
    assert found.outliers == 9
    assert found.median_relative_error < 0.03


def test_weights_say_how_much_a_sample_counts() -> None:
    light = [replace(s, step_s=s.step_s * 1.5, weight=1e-6) for s in steps(A100, 80, seed=2)]

    found = fit(steps(A100) + light)

    assert max(errors(A100, found.step)) < 0.001
    assert found.median_relative_error < 0.001


def alike(**fixed: float) -> list[StepSample]:
    made = [replace(sample, **fixed) for sample in steps(A100)]
    return [replace(s, step_s=seconds(A100, s.batch, s.kv_tokens, s.prefill_tokens)) for s in made]


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (alike(batch=8.0), "batch never varied by themselves, so per_sequence_s cannot be fitted"),
        (alike(prefill_tokens=0.0), "prefill tokens never varied by themselves, so per_prefill_token_s"),
        (
            alike(batch=8.0, kv_tokens=3200.0),
            "batch and KV tokens never varied by themselves, so per_sequence_s and per_kv_token_s",
        ),
    ],
)
def test_constant_load_is_named(samples: list[StepSample], told: str) -> None:
    with pytest.raises(FitError, match=told):
        fit(samples)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(FitError, match=f"7 samples of steps: at least {LEAST_SAMPLES} are needed"):
        fit(steps(A100, 7))


@pytest.mark.parametrize(
    "wrong", [{"step_s": 0.0}, {"step_s": float("nan")}, {"batch": -1.0}, {"weight": 0.0}]
)
def test_invalid_sample_is_named(wrong: dict[str, float]) -> None:
    samples = steps(A100)
    samples[3] = replace(samples[3], **wrong)

    with pytest.raises(FitError, match=r"samples\[3\] = .*must be finite and above 0"):
        fit(samples)
