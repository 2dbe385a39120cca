from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.cli.knobs_command import choose_scope, knob_table, parse_arguments, snippet
from serve_app.cluster.knob_changes import changed, differences, value_text
from serve_app.settings.knobs import IngressKnobs, Knobs, read_user_config
from serve_app.settings.settings_error import SettingsError

BERLIN = {"timezone": "Europe/Berlin", "days": ["mon"]}
WINDOW = {"start": "08:00", "end": "18:00", "min_replicas": 2}


def problems(call: Any, *args: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        call(*args)
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max_replicas=3", 3),
        ("max_replicas=0", 0),
        ("ttft_target_s=0.25", 0.25),
        ("mode=advise", "advise"),
        ("forecast=false", False),
        ("ttft_target_s=default", "default"),
        ("headroom=", None),
        ("schedules=[]", []),
        ("schedules=[{start: '08:00', end: '18:00', min_replicas: 2}]", [WINDOW]),
        # Not 1080, which YAML 1.1 reads in 18:00.
        ("schedules=[{start: 08:00, end: 18:00, min_replicas: 2}]", [WINDOW]),
        ("schedules=[{timezone: Europe/Berlin, days: [mon]}]", [BERLIN]),
    ],
)
def test_values_are_yaml(text: str, value: object) -> None:
    name = text.partition("=")[0]

    assert parse_arguments([text]) == (None, {name: value})
    assert parse_arguments(["a/b-7B", text]) == ("a/b-7B", {name: value})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["a"], ["name=value: required, and not given"]),
        (["a", "b", "x=1"], ["'b': must be name=value"]),
        (["=1"], ["'=1': must be name=value"]),
        (["x=1", "x=2"], ["x: given twice"]),
    ],
)
def test_a_command_line_that_says_nothing_is_refused(arguments: list[str], told: list[str]) -> None:
    assert problems(parse_arguments, arguments) == told


def test_starting_values_come_from_a_fleet_file(tmp_path: Path) -> None:
    coefficients = {
        "step_base_s": 0.004,
        "step_per_sequence_s": 0.0002,
        "step_per_kv_token_s": 4e-7,
        "step_per_prefill_token_s": 6e-5,
    }
    file = tmp_path / "fleet.yaml"
    file.write_text(
        yaml.safe_dump({"name": "n", "source": "s", "gpu": "g", **coefficients, "kv_cache_tokens": 131_072})
    )

    assert parse_arguments(["a", f"starting_values=@{file}"]) == (
        "a",
        {"starting_values": {**coefficients, "kv_cache_tokens": 131_072}},
    )
    (_, by_name) = parse_arguments(["starting_values=@h100"])
    assert by_name["starting_values"]["cold_start_s"] == [60.0, 90.0]


def test_invalid_fleet_file_is_refused(tmp_path: Path) -> None:
    assert problems(parse_arguments, ["starting_values=@nowhere.yaml", "headroom=@fleet.yaml"]) == [
        "nowhere.yaml: No such file or directory",
        "headroom = '@fleet.yaml': not YAML: while scanning for the next token found character '@' that "
        "cannot start any token",
    ]


def test_a_key_given_twice_in_a_value_is_refused() -> None:
    assert problems(parse_arguments, ["starting_values={step_base_s: 1, step_base_s: 2}"]) == [
        "starting_values = '{step_base_s: 1, step_base_s: 2}': step_base_s: given twice"
    ]


def test_what_is_not_yaml_is_told_on_one_line() -> None:
    (line,) = problems(parse_arguments, ["schedules=[{"])

    assert line.startswith("schedules = '[{': not YAML: ")
    assert "\n" not in line


def test_unknown_model_error_lists_the_models() -> None:
    assert problems(choose_scope, None, ["a", "b"]) == [
        "MODEL: required, and not given; this application has 'a', 'b'"
    ]
    assert problems(choose_scope, "c", ["a", "b"]) == [
        "MODEL = 'c': no such model; this application has 'a', 'b', and 'ingress'"
    ]


def test_setting_a_knob_leaves_the_others_and_the_original_alone() -> None:
    before = {"autoscaling": {"a": {"headroom": 2}, "b": {"mode": "advise"}}, "ingress": {"max_replicas": 2}}

    after = changed(before, "a", {"max_replicas": 3})

    assert after == {
        "autoscaling": {"a": {"headroom": 2, "max_replicas": 3}, "b": {"mode": "advise"}},
        "ingress": {"max_replicas": 2},
    }
    assert before["autoscaling"]["a"] == {"headroom": 2}


def test_the_first_knob_of_all_makes_its_place() -> None:
    assert changed({}, "a", {"max_replicas": 3}) == {"autoscaling": {"a": {"max_replicas": 3}}}
    assert changed({}, "ingress", {"max_replicas": 3}) == {"ingress": {"max_replicas": 3}}
    assert changed({"autoscaling": None}, "a", {"headroom": 0}) == {"autoscaling": {"a": {"headroom": 0}}}


def test_default_removes_an_override_and_what_is_empty_then() -> None:
    before = {"autoscaling": {"a": {"headroom": 2, "max_replicas": 3}}, "ingress": {"max_replicas": 2}}

    once = changed(before, "a", {"headroom": "default"})
    assert once["autoscaling"] == {"a": {"max_replicas": 3}}
    twice = changed(once, "a", {"max_replicas": "default"})
    assert twice == {"ingress": {"max_replicas": 2}}
    assert changed(twice, "ingress", {"max_replicas": "default"}) == {}
    assert changed({}, "a", {"headroom": "default"}) == {}


def test_unknown_knob_error_suggests_the_nearest() -> None:
    assert problems(changed, {}, "a", {"max_replica": 3}) == [
        "a.max_replica = 3: no such knob; did you mean 'max_replicas'?"
    ]
    assert problems(changed, {}, "ingress", {"mode": "default"}) == [
        "ingress.mode = 'default': no such knob; the knobs are min_replicas, max_replicas, "
        "target_ongoing_requests, downscale_delay_s"
    ]


def in_force(user_config: dict[str, Any]) -> tuple[dict[str, Knobs], IngressKnobs]:
    return read_user_config({"a": Knobs(), "b": Knobs(max_replicas=4)}, user_config)


def test_differences_are_those_of_the_values_in_force() -> None:
    old = in_force({"autoscaling": {"a": {"max_replicas": 3}}})
    new = in_force({"autoscaling": {"b": {"max_replicas": 4}}, "ingress": {"max_replicas": 2}})

    assert differences(old, new) == ["a.max_replicas: 3 -> 1", "ingress.max_replicas: 4 -> 2"]
    assert differences(old, old) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (8.0, "8"),
        (0.025, "0.025"),
        (3, "3"),
        ("act", "act"),
        ((), "[]"),
        (("a", "b-*"), "[a, b-*]"),
        (None, "null"),
    ],
)
def test_values_are_shown_as_they_could_be_written(value: object, text: str) -> None:
    assert value_text(value) == text


def test_schedules_are_shown_as_they_could_be_written() -> None:
    knobs = Knobs.model_validate({"max_replicas": 2, "schedules": [WINDOW]})

    text = value_text(knobs.schedules)

    assert yaml.safe_load(text) == [item.model_dump(mode="json") for item in knobs.schedules]
    assert "\n" not in text


def test_starting_values_are_shown_as_they_could_be_written() -> None:
    coefficients = dict.fromkeys(
        ("step_per_sequence_s", "step_per_kv_token_s", "step_per_prefill_token_s"), 0.0001
    )
    given = {"step_base_s": 0.004, **coefficients, "cold_start_s": [22.0, 24.0]}

    text = value_text(Knobs.model_validate({"starting_values": given}).starting_values)

    assert yaml.safe_load(text) == given
    assert "\n" not in text


def test_the_table_marks_what_differs_from_the_default() -> None:
    lines = knob_table("a", Knobs(max_replicas=3), Knobs())

    assert lines[0] == "a"
    assert len(lines) == 1 + len(Knobs.model_fields)
    assert "  * max_replicas                3               default 1" in lines
    assert "    mode                        act" in lines
    assert [line for line in lines if "*" in line] == [lines[3]]


def test_the_snippet_is_what_stands_in_a_configuration() -> None:
    user_config = {"autoscaling": {"a": {"schedules": [WINDOW]}}}

    assert yaml.safe_load(snippet(user_config)) == {
        "deployments": [{"name": "Ingress", "user_config": user_config}]
    }
