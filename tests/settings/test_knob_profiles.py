from __future__ import annotations

from importlib import resources

import pytest

from serve_app.settings import ModelSettings, SettingsError, load_settings
from serve_app.settings import knob_profiles as profiles
from serve_app.settings.knob_profiles import KNOBS, PROFILES, apply_profile, read_profile


def test_every_profile_that_is_shipped_can_be_named_and_the_other_way_round() -> None:
    files = {file.name for file in resources.files("serve_app.settings.profiles").iterdir()}

    assert {name.removesuffix(".yaml") for name in files if name.endswith(".yaml")} == set(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_holds_valid_model_settings_and_knobs_beside_them(name: str) -> None:
    overlay = read_profile(name)
    knobs = overlay.pop(KNOBS)

    assert ModelSettings.model_validate({"name": "a", "device": "cpu", **overlay}).name == "a"
    assert isinstance(knobs, dict)


def test_the_profiles_trade_latency_for_cost_in_their_order() -> None:
    """Small batches and chunks first, large ones last."""
    latency, balanced, cost = (
        load_settings({"profile": name, "models": [{"name": "a"}]}).models[0] for name in PROFILES
    )

    assert latency.max_num_seqs < balanced.max_num_seqs < cost.max_num_seqs
    assert latency.max_num_batched_tokens is not None
    assert balanced.max_num_batched_tokens is not None
    assert cost.max_num_batched_tokens is not None
    assert latency.max_num_batched_tokens < balanced.max_num_batched_tokens < cost.max_num_batched_tokens


@pytest.mark.parametrize("name", ["fastest", "", "Balanced", 3, ["balanced"], "../profiles/balanced"])
def test_an_unknown_profile_is_refused_with_the_names_there_are(name: object) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"profile": name, "models": [{"name": "a"}]})

    assert caught.value.problems == [
        f"profile = {name!r}: must be one of lowest-latency, balanced, lowest-cost"
    ]


def test_what_a_model_sets_itself_wins() -> None:
    own = {"name": "a", "max_num_seqs": 1, "engine_args": {"seed": 7}}

    (model,) = apply_profile({"profile": "lowest-cost", "models": [own]})["models"]

    assert model == {
        "name": "a",
        "max_num_seqs": 1,
        "engine_args": {"seed": 7},
        "max_num_batched_tokens": 16384,  # the profile's, as are the last two
        "enable_prefix_caching": True,
        "gpu_memory_utilization": 0.95,
    }


def test_what_a_model_sets_itself_wins_at_every_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "read_profile", lambda name: {"engine_args": {"seed": 1, "block_size": 32}})

    def under(engine_args: object) -> object:
        (model,) = apply_profile({"profile": "x", "models": [{"engine_args": engine_args}]})["models"]
        return model["engine_args"]

    assert under({"seed": 7}) == {"seed": 7, "block_size": 32}
    assert under(None) is None  # for the check that follows to refuse


def test_knobs_are_no_settings_of_a_model() -> None:
    (model,) = apply_profile({"profile": "lowest-latency", "models": [{"name": "a"}]})["models"]

    assert KNOBS not in model


def test_the_profile_is_gone_once_applied_and_the_arguments_are_left_as_they_were() -> None:
    args = {"profile": "balanced", "models": [{"name": "a", "env": {"A": "1"}}]}

    merged = apply_profile(args)

    assert "profile" not in merged
    assert args == {"profile": "balanced", "models": [{"name": "a", "env": {"A": "1"}}]}


def test_without_a_profile_nothing_is_added() -> None:
    assert apply_profile({"models": [{"name": "a"}]}) == {"models": [{"name": "a"}]}


def test_entries_that_are_no_models_are_left_for_the_check_that_names_them() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"profile": "balanced", "models": [3]})

    assert [line.partition(":")[0] for line in caught.value.problems] == ["models[0] = 3"]
