from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from serve_app.settings.knobs import PERCENTILES, IngressKnobs, Knobs, LiveSettings, overlay
from serve_app.settings.schedule import Schedule


def refused(**given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Knobs.model_validate(given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_replicas", -1),
        ("min_replicas", 1.5),
        ("max_replicas", 0),
        ("max_replicas", 10_001),
        ("ttft_target_s", 0),
        ("ttft_target_s", 3601),
        ("ttft_percentile", 94),
        ("itl_target_s", 0),
        ("queue_target_per_replica", 0),
        ("headroom", -0.1),
        ("upscale_delay_s", -1),
        ("downscale_delay_s", 86_401),
        ("forecast_quantile", 1.1),
        ("forecast_window_s", 59),
        ("cold_wait_timeout_s", 0),
        ("keep_alive_interval_s", 0),
        ("max_held_requests", -1),
        ("mode", "off"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_by_name(name: str, value: Any) -> None:
    assert name in refused(**{name: value})


@pytest.mark.parametrize("name", ["ttft_target_s", "headroom", "downscale_delay_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    assert "finite" in refused(**{name: value})


def test_a_knob_that_does_not_exist_is_refused() -> None:
    assert "min_replica" in refused(min_replica=1)


def test_the_bounds_must_not_cross() -> None:
    assert "min_replicas = 3 must be at most max_replicas = 2" in refused(min_replicas=3, max_replicas=2)
    with pytest.raises(ValidationError, match="min_replicas = 3 must be at most max_replicas = 2"):
        IngressKnobs(min_replicas=3, max_replicas=2)


def test_a_schedule_may_not_ask_for_more_than_the_maximum() -> None:
    window = {"start": "08:00", "end": "18:00", "min_replicas": 5}

    assert "schedules[0].min_replicas = 5 must be at most max_replicas = 4" in refused(
        max_replicas=4, schedules=[window]
    )


STARTING = {
    "step_base_s": 0.004,
    "step_per_sequence_s": 0.00027,
    "step_per_kv_token_s": 4.3e-7,
    "step_per_prefill_token_s": 6.4e-5,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step_base_s", 0.0),
        ("step_base_s", 61.0),
        ("step_per_sequence_s", -1e-6),
        ("step_per_kv_token_s", 0.01),
        ("step_per_prefill_token_s", math.nan),
        ("cold_start_s", [0.0, 3.0]),
        ("cold_start_s", [1.0, 86_401.0]),
        ("cold_start_s", [1.0]),
        ("kv_cache_tokens", 512),
        ("name", "a fleet file has more than this"),
    ],
)
def test_a_starting_value_out_of_its_bounds_is_refused_by_name(name: str, value: Any) -> None:
    assert f"starting_values.{name}" in refused(starting_values={**STARTING, name: value})


def test_a_start_may_not_take_longer_at_least_than_at_most() -> None:
    told = refused(starting_values={**STARTING, "cold_start_s": [9.0, 3.0]})

    assert "cold_start_s = [9, 3]: the first must be at most the second" in told


def test_starting_values_survive_json_and_are_replaced_as_a_whole() -> None:
    knobs = overlay(Knobs(), {"starting_values": {**STARTING, "cold_start_s": [22.0, 24.0]}})

    assert knobs.starting_values is not None
    assert knobs.starting_values.typical_start_s == 23.0
    assert overlay(knobs, {}) == knobs == Knobs.model_validate_json(knobs.model_dump_json())
    again = overlay(knobs, {"starting_values": STARTING}).starting_values
    assert again is not None
    assert again.cold_start_s is None


def test_every_percentile_replicas_report_can_be_the_target() -> None:
    assert [Knobs(ttft_percentile=p).ttft_percentile for p in PERCENTILES] == [50, 90, 95, 99]


def test_what_is_given_lies_over_the_defaults() -> None:
    defaults = Knobs(max_replicas=8, headroom=2.0)

    knobs = overlay(defaults, {"max_replicas": 4})

    assert (knobs.max_replicas, knobs.headroom) == (4, 2.0)
    assert overlay(defaults, {}) == defaults


def test_knobs_survive_json_with_their_schedules() -> None:
    knobs = Knobs(max_replicas=4, schedules=(Schedule(start="08:00", end="18:00", min_replicas=2),))

    assert Knobs.model_validate_json(knobs.model_dump_json()) == knobs
    assert overlay(knobs, {}) == knobs


def test_the_overlay_is_checked_against_the_defaults_under_it() -> None:
    with pytest.raises(ValidationError, match="min_replicas = 3 must be at most max_replicas = 2"):
        overlay(Knobs(max_replicas=2), {"min_replicas": 3})


def test_live_settings_may_be_empty_and_know_only_two_keys() -> None:
    assert LiveSettings.model_validate({}).ingress == IngressKnobs()
    with pytest.raises(ValidationError, match="models"):
        LiveSettings.model_validate({"models": {}})


def test_two_ingress_replicas_are_the_default_where_the_maximum_allows() -> None:
    assert IngressKnobs().min_replicas == 2
    assert IngressKnobs(max_replicas=7).min_replicas == 2
    assert IngressKnobs(max_replicas=1).min_replicas == 1
