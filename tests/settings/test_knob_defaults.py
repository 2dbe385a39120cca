from __future__ import annotations

import pytest

from serve_app.settings import SettingsError, knob_defaults
from serve_app.settings.knob_profiles import PROFILES
from serve_app.settings.knobs import Knobs


def of_profile(name: str) -> Knobs:
    return knob_defaults({"profile": name, "models": [{"name": "a"}]})["a"]


def test_without_a_profile_every_model_has_the_general_defaults() -> None:
    found = knob_defaults({"models": [{"name": "a"}, {"name": "org/b"}]})

    assert found == {"a": Knobs(), "org/b": Knobs()}
    assert (Knobs().min_replicas, Knobs().max_replicas) == (1, 1)


def test_balanced_is_the_general_defaults() -> None:
    assert of_profile("balanced") == Knobs()


def test_what_a_profile_says_of_knobs_is_the_default_of_every_model() -> None:
    found = knob_defaults({"profile": "lowest-cost", "models": [{"name": "a"}, {"name": "b"}]})

    assert found["a"] == found["b"]
    assert (found["a"].min_replicas, found["a"].max_replicas) == (0, 1)
    assert found["a"].queue_target_per_replica == 32
    assert found["a"].keep_alive_interval_s == Knobs().keep_alive_interval_s  # of which it says nothing


def test_the_profiles_trade_latency_for_cost_in_their_order() -> None:
    """Tight targets, early and spare replicas first; slack, late ones, and zero when idle last."""
    latency, balanced, cost = (of_profile(name) for name in PROFILES)

    for rising in ("ttft_target_s", "itl_target_s", "queue_target_per_replica", "upscale_delay_s"):
        assert getattr(latency, rising) < getattr(balanced, rising) < getattr(cost, rising), rising
    for falling in ("headroom", "downscale_delay_s", "downscale_to_zero_delay_s"):
        assert getattr(latency, falling) > getattr(balanced, falling) > getattr(cost, falling), falling
    assert [knobs.min_replicas for knobs in (latency, balanced, cost)] == [1, 1, 0]


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(SettingsError, match="profile = 'fastest': must be one of"):
        of_profile("fastest")
