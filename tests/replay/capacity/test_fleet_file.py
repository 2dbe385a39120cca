from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml

from replay.capacity.fleet_file import Hardware, make_profile, starting_values_block, with_knee, write_profile
from replay.capacity.knee_text import report
from replay.capacity.measure import Limits, Measurement
from replay.capacity.server import ColdStart, MeasurementError
from replay.fit import Fit
from replay.profile import Knee, Profile, load_profile, load_starting_values
from serve_app.policy.capacity_model import StepTime
from serve_app.settings.knobs import Knobs, read_user_config

FIT = Fit(
    StepTime(0.01151234, 0.000120049, 1.2e-7, 5e-5), StepTime(1e-5, 1e-6, 1e-9, 1e-7), 0.0213, 0.061, 80, 2
)
LIMITS = Limits(16_384, 445_000, 128, 8192)
COLD = ColdStart(model="tide", cold_start_s=40.0, phases_s={"imports": 10.0, "weights_and_kv_cache": 30.0})
MEASURED = Measurement("tide", (), LIMITS, Knobs(), COLD, 12, 900)
HARDWARE = Hardware("A100-80GB", 1, 3.67)
DAY = date(2026, 3, 1)


def made(measured: Measurement = MEASURED, hardware: Hardware = HARDWARE, fitted: Fit = FIT) -> Profile:
    return make_profile(measured, fitted, hardware, "mine", DAY)


def test_written_profile_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(write_profile(made()), encoding="utf-8")

    assert load_profile(path) == made()


def test_the_figures_are_those_measured() -> None:
    profile = made()

    assert profile.step == StepTime(0.01151, 0.00012, 1.2e-7, 5e-5)
    assert profile.fit_error == 0.0213
    assert (profile.kv_cache_tokens, profile.max_num_seqs, profile.max_num_batched_tokens) == (
        445_000,
        128,
        8192,
    )
    assert (profile.gpu, profile.gpus, profile.price_per_gpu_hour) == ("A100-80GB", 1, 3.67)


def test_warm_and_cold_starts_are_kept_apart() -> None:
    both = COLD.model_copy(
        update={
            "warm_node_start_s": 3.0,
            "cold_node_start_s": 50.0,
            "cold_start_s": 3.0,
            "cold_node_phases_s": {"imports": 20.0, "weights_and_kv_cache": 30.0},
        }
    )
    profile = made(replace(MEASURED, cold_start=both))

    assert (profile.cold_start_s, profile.warm_node_start_s) == ((52.0, 54.0), (5.0, 7.0))
    assert profile.cold_start_phases == {"imports": 0.4, "weights_and_kv_cache": 0.6}


def test_a_start_that_was_not_measured_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(write_profile(made(replace(MEASURED, cold_start=None))), encoding="utf-8")

    assert "cold_start_s" not in path.read_text()
    assert load_profile(path).cold_start_s == (60.0, 90.0)
    assert "cold_start_s" not in load_starting_values(path)


def test_a_knee_is_written_and_read_back(tmp_path: Path) -> None:
    found = Knee(
        prompt_tokens=256,
        output_tokens=64,
        rps=9.4,
        bound="ITL",
        ttft_target_s=0.5,
        itl_target_s=None,
        percentile=95,
        ttft_s=0.4,
        itl_s=None,
        formula_rps=9.2,
        curve=((9.4, 0.4, None, 0.99),),
    )
    profile = with_knee(made(), found, (512, 128))
    path = tmp_path / "mine.yaml"
    path.write_text(write_profile(profile), encoding="utf-8")

    assert load_profile(path) == profile
    assert profile.source.endswith("256 + 64 tokens, cut from 512 + 128 to what fits.")


def test_the_block_is_what_stands_in_a_user_config() -> None:
    block = yaml.safe_load(starting_values_block("tide", made()))

    knobs = read_user_config({"tide": Knobs()}, block)[0]["tide"]
    assert knobs.starting_values is not None
    assert knobs.starting_values.coefficients == (0.01151, 0.00012, 1.2e-7, 5e-5)
    assert knobs.starting_values.cold_start_s == (42.0, 44.0)


def test_a_model_without_a_kv_cache_makes_no_profile() -> None:
    with pytest.raises(MeasurementError, match="kv_cache_tokens = 0: input should be greater than"):
        made(replace(MEASURED, limits=replace(LIMITS, kv_cache_tokens=0)))


def test_report_has_step_time_error_and_capacity() -> None:
    text = report(made(), FIT, Knobs(), 16_384, COLD)

    assert "a step                11.51 ms +- 0.01" in text
    assert "a KV token             0.12 us +- 0.001" in text
    assert "error: 2.1% median, 6.1% at the 90th percentile" in text
    assert "2 outliers left out" in text
    assert "with P95 TTFT within 200 ms and ITL within 25 ms" in text
    assert "requests/s of 512 + 128 tokens" in text
    assert (
        "Cold start: 40.0 s from process to readiness (imports 10.0 s, weights_and_kv_cache 30.0 s)" in text
    )


def test_unreachable_target_is_named() -> None:
    text = report(made(), FIT, Knobs(itl_target_s=0.01), 16_384, COLD)

    assert "ITL of 11.7 ms on an empty replica misses the target, which is left out" in text
