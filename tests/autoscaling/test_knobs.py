from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from serve_app.autoscaling.knobs import PERCENTILES, IngressKnobs, Knobs, LiveSettings, overlay
from serve_app.autoscaling.schedule import Schedule


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
