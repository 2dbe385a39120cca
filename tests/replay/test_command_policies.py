from __future__ import annotations

import pytest

from replay.command_policies import policies, with_knobs
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError

KNOBS = Knobs(min_replicas=0, max_replicas=32)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["ours"], ["ours"]),
        (["ours,ray:5", "static:3"], ["ours", "ray:5", "static:3"]),
        (["dynamo:itl=0.015,ttft=0.15, interval=60"], ["dynamo:itl=0.015,ttft=0.15,interval=60"]),
        (
            ["ours,dynamo:itl=0.02,ttft=0.2,hpa:waiting=1"],
            ["ours", "dynamo:itl=0.02,ttft=0.2", "hpa:waiting=1"],
        ),
    ],
)
def test_commas_separate_policies_and_the_settings_of_one(given: list[str], found: list[str]) -> None:
    assert policies(given) == found


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["ours,,ray"], "--policy: a policy is missing between commas, or has no name"),
        ([""], "--policy: a policy is missing between commas, or has no name"),
        (["ours,ray", "ours"], "--policy = 'ours': given twice"),
    ],
)
def test_a_missing_or_repeated_policy_is_refused(given: list[str], problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        policies(given)

    assert error.value.problems == [problem]


def test_knobs_replace_those_of_the_configuration() -> None:
    changed = with_knobs(KNOBS, ["headroom=2", "forecast=false", "max_replicas=4"])

    assert changed == KNOBS.model_copy(update={"headroom": 2.0, "forecast": False, "max_replicas": 4})
    assert with_knobs(KNOBS, []) is KNOBS


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["headroom"], "--knob = 'headroom': must be name=value"),
        (["head_room=1"], "knob.head_room = 1: no such knob; did you mean 'headroom'?"),
        (["headroom=-1"], "knob.headroom = -1: input should be greater than or equal to 0"),
        (["headroom=default"], "knob.headroom = default: must be a value"),
        (["headroom=1", "headroom=2"], "headroom: given twice"),
        (["min_replicas=40"], "knob: min_replicas = 40 must be at most max_replicas = 32"),
    ],
)
def test_a_knob_that_is_wrong_is_named_with_its_value_and_bound(given: list[str], problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        with_knobs(KNOBS, given)

    assert error.value.problems == [problem]
