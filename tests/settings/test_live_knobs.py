import json

import pytest

from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.live_knobs import LiveKnobs
from serve_app.settings.settings_error import SettingsError

DEFAULTS = {"a": Knobs(max_replicas=4), "b": Knobs(max_replicas=2, headroom=0.0)}


def test_knobs_are_taken_over_all_or_none() -> None:
    live = LiveKnobs(DEFAULTS)
    live.apply({"autoscaling": {"a": {"max_replicas": 6}}})

    with pytest.raises(SettingsError):
        live.apply({"autoscaling": {"a": {"max_replicas": 7}, "b": {"max_replicas": 0}}})

    assert live.of("a").max_replicas == 6


def test_knobs_that_are_taken_away_again_fall_back_to_the_defaults() -> None:
    live = LiveKnobs(DEFAULTS)
    live.apply({"autoscaling": {"a": {"max_replicas": 6}}, "ingress": {"max_replicas": 9}})
    live.apply({})

    assert live.of("a") == DEFAULTS["a"]
    assert live.ingress == IngressKnobs()


def test_knobs_checked_elsewhere_are_adopted_as_they_are() -> None:
    live = LiveKnobs(DEFAULTS)
    live.adopt({"a": Knobs(max_replicas=9), "b": DEFAULTS["b"]}, IngressKnobs(max_replicas=3))

    assert (live.of("a").max_replicas, live.ingress.max_replicas) == (9, 3)


def test_everything_in_force_is_plain_json() -> None:
    document = json.loads(json.dumps(LiveKnobs(DEFAULTS).document()))

    assert Knobs.model_validate(document["models"]["b"]) == DEFAULTS["b"]
    assert IngressKnobs.model_validate(document["ingress"]) == IngressKnobs()
