from __future__ import annotations

from importlib import resources

import pytest

from serve_app.settings import ModelSettings, SettingsError, load_settings
from serve_app.settings.profiles import PROFILES, apply_profile, read_profile


def test_every_profile_that_is_shipped_can_be_named_and_the_other_way_round() -> None:
    files = {file.name for file in resources.files("serve_app.profiles").iterdir()}

    assert {name.removesuffix(".yaml") for name in files if name.endswith(".yaml")} == set(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_holds_valid_model_settings(name: str) -> None:
    assert ModelSettings.model_validate({"name": "a", "device": "cpu", **read_profile(name)}).name == "a"


def test_the_profiles_trade_latency_for_cost_in_their_order() -> None:
    """Small batches and early replicas first; large batches, late replicas, and zero when idle last."""
    latency, balanced, cost = (
        load_settings({"profile": name, "models": [{"name": "a", "scaling": {"max_replicas": 4}}]}).models[0]
        for name in ("lowest-latency", "balanced", "lowest-cost")
    )

    assert latency.max_num_seqs < balanced.max_num_seqs < cost.max_num_seqs
    targets = [model.scaling.target_ongoing_requests for model in (latency, balanced, cost)]
    assert targets == sorted(set(targets))
    delays = [model.scaling.upscale_delay_s for model in (latency, balanced, cost)]
    assert delays == sorted(set(delays))
    assert [model.scaling.min_replicas for model in (latency, balanced, cost)] == [1, 1, 0]


@pytest.mark.parametrize("name", ["fastest", "", "Balanced", 3, ["balanced"], "../profiles/balanced"])
def test_an_unknown_profile_is_refused_with_the_names_there_are(name: object) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"profile": name, "models": [{"name": "a"}]})

    assert caught.value.problems == [
        f"profile = {name!r}: must be one of lowest-latency, balanced, lowest-cost"
    ]


def test_what_a_model_sets_itself_wins_at_every_depth() -> None:
    own = {"name": "a", "max_num_seqs": 1, "scaling": {"max_replicas": 9, "upscale_delay_s": 77}}

    (model,) = apply_profile({"profile": "lowest-cost", "models": [own]})["models"]

    assert model["max_num_seqs"] == 1
    assert model["max_num_batched_tokens"] == 16384  # the profile's
    assert model["scaling"] == {
        "min_replicas": 0,  # the profile's, as are the last two
        "max_replicas": 9,
        "upscale_delay_s": 77,
        "target_ongoing_requests": 64,
        "downscale_delay_s": 60,
    }


def test_a_value_that_is_no_mapping_replaces_the_profiles_mapping() -> None:
    (model,) = apply_profile({"profile": "balanced", "models": [{"name": "a", "scaling": None}]})["models"]

    assert model["scaling"] is None  # for the check that follows to refuse


def test_the_profile_is_gone_once_applied_and_the_arguments_are_left_as_they_were() -> None:
    args = {"profile": "balanced", "models": [{"name": "a", "scaling": {"max_replicas": 2}}]}

    merged = apply_profile(args)

    assert "profile" not in merged
    assert args == {"profile": "balanced", "models": [{"name": "a", "scaling": {"max_replicas": 2}}]}


def test_without_a_profile_nothing_is_added() -> None:
    assert apply_profile({"models": [{"name": "a"}]}) == {"models": [{"name": "a"}]}


def test_entries_that_are_no_models_are_left_for_the_check_that_names_them() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"profile": "balanced", "models": [3]})

    assert [line.partition(":")[0] for line in caught.value.problems] == ["models[0] = 3"]
