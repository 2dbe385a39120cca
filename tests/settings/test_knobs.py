import math
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from serve_app.settings.knobs import PERCENTILES, IngressKnobs, Knobs, Schedule, overlay, scheduled_minimum


def refused(**given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Knobs.model_validate(given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_replicas", -1), ("min_replicas", 1.5), ("max_replicas", 0), ("max_replicas", 10_001),
        ("ttft_target_s", 0), ("ttft_target_s", 3601), ("ttft_percentile", 94), ("itl_target_s", 0),
        ("queue_target_per_replica", 0), ("headroom", -0.1), ("upscale_delay_s", -1),
        ("downscale_delay_s", 86_401), ("forecast_quantile", 1.1), ("forecast_window_s", 59),
        ("cold_wait_timeout_s", 0), ("keep_alive_interval_s", 0), ("max_held_requests", -1),
        ("mode", "off"), ("no_such_knob", 1),
    ],
)  # fmt: skip
def test_a_value_out_of_its_bounds_is_refused_by_name(name: str, value: Any) -> None:
    assert name in refused(**{name: value})


@pytest.mark.parametrize("name", ["ttft_target_s", "headroom", "downscale_delay_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    assert "finite" in refused(**{name: value})


def test_the_bounds_must_not_cross() -> None:
    assert "min_replicas = 3 must be at most max_replicas = 2" in refused(min_replicas=3, max_replicas=2)
    with pytest.raises(ValidationError, match="min_replicas = 3 must be at most max_replicas = 2"):
        IngressKnobs(min_replicas=3, max_replicas=2)
    with pytest.raises(ValidationError, match="min_replicas = 3 must be at most max_replicas = 2"):
        overlay(Knobs(max_replicas=2), {"min_replicas": 3})


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
        ("step_base_s", 0.0), ("step_base_s", 61.0), ("step_per_sequence_s", -1e-6),
        ("step_per_kv_token_s", 0.01), ("step_per_prefill_token_s", math.nan),
        ("cold_start_s", [0.0, 3.0]), ("cold_start_s", [1.0, 86_401.0]), ("cold_start_s", [1.0]),
        ("kv_cache_tokens", 512), ("name", "a fleet file has more than this"),
    ],
)  # fmt: skip
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


def test_two_ingress_replicas_are_the_default_where_the_maximum_allows() -> None:
    assert IngressKnobs().min_replicas == 2
    assert IngressKnobs(max_replicas=7).min_replicas == 2
    assert IngressKnobs(max_replicas=1).min_replicas == 1


def at(text: str, zone: str = "UTC") -> float:
    """Unix time of a local moment."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


MORNING = Schedule(
    days=("mon", "tue", "wed", "thu", "fri"),
    start="08:00",
    end="18:00",
    timezone="Europe/Berlin",
    min_replicas=4,
)
NIGHT = Schedule(days=("fri",), start="22:00", end="02:00", min_replicas=2)
ALWAYS = Schedule(start="06:00", end="06:00", min_replicas=1)


@pytest.mark.parametrize(
    ("moment", "open_"),
    [
        ("2026-03-02 07:59:59", False),  # a Monday
        ("2026-03-02 08:00:00", True),
        ("2026-03-02 17:59:59", True),
        ("2026-03-02 18:00:00", False),
        ("2026-03-01 12:00:00", False),  # a Sunday
        ("2026-07-01 08:00:00", True),  # in summer time
        ("2026-07-01 07:59:00", False),
    ],
)
def test_a_window_is_open_from_its_start_to_before_its_end_in_local_time(moment: str, open_: bool) -> None:
    assert MORNING.covers(at(moment, "Europe/Berlin")) is open_


@pytest.mark.parametrize(
    ("moment", "open_"),
    [
        ("2026-03-06 21:59:00", False),  # a Friday
        ("2026-03-06 22:00:00", True),
        ("2026-03-07 01:59:00", True),  # Saturday, but the window is Friday's
        ("2026-03-07 02:00:00", False),
        ("2026-03-06 01:00:00", False),  # Thursday's night is none of it
        ("2026-03-07 22:30:00", False),
    ],
)
def test_a_window_that_runs_past_midnight_belongs_to_the_day_it_starts_on(moment: str, open_: bool) -> None:
    assert NIGHT.covers(at(moment)) is open_


@pytest.mark.parametrize("clock", ["00:00", "05:59", "06:00", "23:59"])
def test_a_start_that_is_the_end_means_all_day(clock: str) -> None:
    assert ALWAYS.covers(at(f"2026-03-02 {clock}:00"))


def test_the_clock_change_moves_a_window_by_the_hour() -> None:
    # Berlin went to summer time on 2026-03-29: 08:00 is 07:00 UTC before and 06:00 UTC after.
    assert not MORNING.covers(at("2026-03-27 06:30:00"))
    assert MORNING.covers(at("2026-03-30 06:30:00"))


def test_a_window_opens_the_lead_early_so_that_its_replicas_are_ready() -> None:
    lead_s = 75.0

    assert scheduled_minimum([MORNING], at("2026-03-02 07:58:44", "Europe/Berlin"), lead_s) == 0
    assert scheduled_minimum([MORNING], at("2026-03-02 07:58:45", "Europe/Berlin"), lead_s) == 4


def test_a_window_shorter_than_the_lead_is_not_jumped_over() -> None:
    short = Schedule(start="12:00", end="12:05", min_replicas=3)

    assert scheduled_minimum([short], at("2026-03-02 11:30:00"), 3600.0) == 3


def test_of_several_windows_the_largest_counts() -> None:
    noon = at("2026-03-02 12:00:00", "Europe/Berlin")

    assert scheduled_minimum([MORNING, ALWAYS], noon, 0.0) == 4
    assert scheduled_minimum([ALWAYS, MORNING], noon, 0.0) == 4
    assert scheduled_minimum([], noon, 60.0) == 0


def test_the_lead_is_at_most_an_hour_and_never_negative() -> None:
    day_before = at("2026-03-02 06:00:00", "Europe/Berlin")

    assert scheduled_minimum([MORNING], day_before, 86_400.0) == 0
    assert scheduled_minimum([MORNING], day_before, -5.0) == 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"start": "24:00"}, "start"),
        ({"start": "8:00"}, "start"),
        ({"end": 1080}, "in quotes"),  # what YAML 1.1 makes of 18:00
        ({"timezone": "Mars/Olympus"}, "IANA"),
        ({"timezone": "../../etc/passwd"}, "IANA"),
        ({"min_replicas": 0}, "min_replicas"),
        ({"days": ()}, "days"),
        ({"days": ("monday",)}, "days"),
        ({"start": "06:00", "end": "06:00", "days": ("mon",)}, "means the whole day"),
    ],
)
def test_what_is_no_window_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Schedule.model_validate({"start": "08:00", "end": "18:00", "min_replicas": 1, **wrong})
