import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from serve_app.settings.knobs import (
    IngressKnobs,
    Knobs,
    LiveKnobs,
    Schedule,
    StartingValues,
    overlay,
    read_user_config,
    scheduled_minimum,
)
from serve_app.settings.settings_error import SettingsError


def refused(**given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Knobs.model_validate(given)
    return str(caught.value)


def test_the_least_replicas_are_at_most_the_most() -> None:
    crossed = "min_replicas = 3 must be at most max_replicas = 2"
    window = {"start": "08:00", "end": "18:00", "min_replicas": 3}
    assert crossed in refused(min_replicas=3, max_replicas=2)
    assert f"schedules[0].{crossed}" in refused(max_replicas=2, schedules=[window])
    with pytest.raises(ValidationError, match=crossed):
        IngressKnobs(min_replicas=3, max_replicas=2)
    with pytest.raises(ValidationError, match=crossed):
        overlay(Knobs(max_replicas=2), {"min_replicas": 3})


STARTING = {
    "step_base_s": 0.004,
    "step_per_sequence_s": 0.00027,
    "step_per_kv_token_s": 4.3e-7,
    "step_per_prefill_token_s": 6.4e-5,
}


def test_a_start_takes_at_least_as_long_as_its_least() -> None:
    crossed = refused(starting_values={**STARTING, "cold_start_s": [9.0, 3.0]})
    assert "cold_start_s = [9, 3]: the first must be at most the second" in crossed
    assert "starting_values.cold_start_s" in refused(starting_values={**STARTING, "cold_start_s": [0.0, 3.0]})


def test_given_knobs_lie_over_the_defaults() -> None:
    defaults = Knobs(
        max_replicas=4,
        headroom=2.0,
        schedules=(Schedule(start="08:00", end="18:00", min_replicas=2),),
        starting_values=StartingValues.model_validate({**STARTING, "cold_start_s": [22.0, 24.0]}),
    )
    assert overlay(defaults, {}) == defaults == Knobs.model_validate_json(defaults.model_dump_json())
    knobs = overlay(defaults, {"max_replicas": 3, "starting_values": STARTING})
    assert (knobs.max_replicas, knobs.headroom, knobs.schedules) == (3, 2.0, defaults.schedules)
    assert knobs.starting_values == StartingValues.model_validate(STARTING)  # replaced as a whole
    assert defaults.starting_values is not None
    assert defaults.starting_values.typical_start_s == 23.0


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
    ("window", "moment", "is_open"),
    [
        (MORNING, "2026-03-02 07:59:59", False),  # a Monday
        (MORNING, "2026-03-02 08:00:00", True),
        (MORNING, "2026-03-02 17:59:59", True),
        (MORNING, "2026-03-02 18:00:00", False),
        (MORNING, "2026-03-01 12:00:00", False),  # a Sunday
        (MORNING, "2026-07-01 08:00:00", True),  # in summer time
        (MORNING, "2026-07-01 07:59:00", False),
        (NIGHT, "2026-03-06 21:59:00", False),  # a Friday
        (NIGHT, "2026-03-06 22:00:00", True),
        (NIGHT, "2026-03-07 01:59:00", True),  # Saturday, in the window of Friday
        (NIGHT, "2026-03-07 02:00:00", False),
        (NIGHT, "2026-03-06 01:00:00", False),  # the night of Thursday
        (NIGHT, "2026-03-07 22:30:00", False),
        (ALWAYS, "2026-03-02 00:00:00", True),
        (ALWAYS, "2026-03-02 05:59:00", True),
        (ALWAYS, "2026-03-02 06:00:00", True),
    ],
)
def test_a_window_opens_and_closes_in_local_time(window: Schedule, moment: str, is_open: bool) -> None:
    assert window.covers(at(moment, window.timezone)) is is_open


def test_a_window_opens_early_by_the_time_of_a_start() -> None:
    lead_s = 75.0

    assert scheduled_minimum([MORNING], at("2026-03-02 07:58:44", "Europe/Berlin"), lead_s) == 0
    assert scheduled_minimum([MORNING], at("2026-03-02 07:58:45", "Europe/Berlin"), lead_s) == 4


def test_a_window_shorter_than_the_lead_is_kept() -> None:
    short = Schedule(start="12:00", end="12:05", min_replicas=3)

    assert scheduled_minimum([short], at("2026-03-02 11:30:00"), 3600.0) == 3


def test_the_largest_of_several_windows_counts() -> None:
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
def test_an_invalid_window_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Schedule.model_validate({"start": "08:00", "end": "18:00", "min_replicas": 1, **wrong})


DEFAULTS = {"a": Knobs(max_replicas=4), "b": Knobs(max_replicas=2, headroom=0.0)}


def problems(user_config: dict[str, object]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read_user_config(DEFAULTS, user_config)
    return caught.value.problems


@pytest.mark.parametrize("nothing", [None, {}, {"autoscaling": {}}, {"autoscaling": {"a": {}}}])
def test_without_a_user_config_the_defaults_are_in_force(nothing: dict[str, object] | None) -> None:
    assert read_user_config(DEFAULTS, nothing) == (DEFAULTS, IngressKnobs())


def test_each_model_has_its_own_knobs_over_its_own_defaults() -> None:
    knobs, ingress = read_user_config(
        DEFAULTS, {"autoscaling": {"a": {"headroom": 3}}, "ingress": {"max_replicas": 9}}
    )

    assert (knobs["a"].headroom, knobs["a"].max_replicas) == (3, 4)
    assert knobs["b"] == DEFAULTS["b"]
    assert ingress.max_replicas == 9


def test_every_problem_is_named_with_its_key_and_its_bound() -> None:
    found = problems(
        {"autoscaling": {"a": {"headroom": -1, "no_such_knob": 1}, "b": {"min_replicas": 3}, "c": {}}}
    )

    assert found[0].startswith("autoscaling['a'].headroom = -1: ")
    assert found[1] == "autoscaling['a'].no_such_knob = 1: no such setting"
    assert "autoscaling['b']" in found[2]
    assert "min_replicas = 3 must be at most max_replicas = 2" in found[2]
    assert found[3] == "autoscaling['c']: no such model; this application has 'a', 'b'"


def test_a_key_of_another_place_is_named_too() -> None:
    assert problems({"models": {}}) == ["models = {}: no such setting"]
    assert problems({"ingress": {"max_replicas": 0}})[0].startswith("ingress.max_replicas = 0")


def test_invalid_knobs_change_nothing() -> None:
    live = LiveKnobs(DEFAULTS)
    live.apply({"autoscaling": {"a": {"max_replicas": 6}}})

    with pytest.raises(SettingsError):
        live.apply({"autoscaling": {"a": {"max_replicas": 7}, "b": {"max_replicas": 0}}})

    assert live.of("a").max_replicas == 6


def test_knobs_checked_elsewhere_are_adopted() -> None:
    live = LiveKnobs(DEFAULTS)
    live.adopt({"a": Knobs(max_replicas=9), "b": DEFAULTS["b"]}, IngressKnobs(max_replicas=3))

    assert (live.of("a").max_replicas, live.ingress.max_replicas) == (9, 3)


def test_the_knobs_in_force_are_plain_json() -> None:
    document = json.loads(json.dumps(LiveKnobs(DEFAULTS).document()))

    assert Knobs.model_validate(document["models"]["b"]) == DEFAULTS["b"]
    assert IngressKnobs.model_validate(document["ingress"]) == IngressKnobs()
