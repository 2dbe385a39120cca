import json

import pytest

from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.live_knobs import LiveKnobs
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.user_config import read_user_config

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


def test_removed_knobs_fall_back_to_the_defaults() -> None:
    live = LiveKnobs(DEFAULTS)
    live.apply({"autoscaling": {"a": {"max_replicas": 6}}, "ingress": {"max_replicas": 9}})
    live.apply({})

    assert live.of("a") == DEFAULTS["a"]
    assert live.ingress == IngressKnobs()


def test_knobs_checked_elsewhere_are_adopted() -> None:
    live = LiveKnobs(DEFAULTS)
    live.adopt({"a": Knobs(max_replicas=9), "b": DEFAULTS["b"]}, IngressKnobs(max_replicas=3))

    assert (live.of("a").max_replicas, live.ingress.max_replicas) == (9, 3)


def test_the_knobs_in_force_are_plain_json() -> None:
    document = json.loads(json.dumps(LiveKnobs(DEFAULTS).document()))

    assert Knobs.model_validate(document["models"]["b"]) == DEFAULTS["b"]
    assert IngressKnobs.model_validate(document["ingress"]) == IngressKnobs()
