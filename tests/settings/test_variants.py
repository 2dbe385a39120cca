"""Variants of a model: what may differ between its replicas, and what may not."""

from typing import Any

import pytest

from serve_app.settings.identity import engine_identity, speed_identity
from serve_app.settings.load import load_settings
from serve_app.settings.settings_error import SettingsError
from serve_app.settings.tree import AppSettings, ModelSettings
from serve_app.weights.model_identity import model_identity

SPOT = {"name": "spot", "resources": {"spot": 0.001}, "usd_per_hour": 1.2, "preemptible": True}
L40S = {"name": "l40s", "accelerator_type": "L40S", "usd_per_hour": 1.1, "quantization": "fp8"}


def model(*variants: dict[str, Any], **changed: Any) -> ModelSettings:
    (found,) = load_settings({"models": [{"name": "qwen", "variants": list(variants), **changed}]}).models
    return found


def test_a_model_without_variants_is_its_own_engine() -> None:
    plain = ModelSettings(name="qwen")

    assert plain.engines() == (plain,)
    assert plain.engine_name == plain.deployment_name == "Engine-qwen"


def test_each_variant_has_a_deployment_and_its_overrides() -> None:
    spot, l40s = model(SPOT, L40S, dtype="bfloat16").engines()

    assert [spot.engine_name, l40s.engine_name] == ["Engine-qwen@spot", "Engine-qwen@l40s"]
    assert (spot.accelerator_type, spot.resources, spot.quantization) == ("A100", {"spot": 0.001}, None)
    assert (l40s.accelerator_type, l40s.resources, l40s.quantization) == ("L40S", {}, "fp8")
    assert spot.dtype == l40s.dtype == "bfloat16"
    assert spot.deployment_name == "Engine-qwen"


def test_expanding_twice_changes_nothing() -> None:
    (only,) = model(L40S).engines()

    assert only.engines() == (only,)
    assert ModelSettings.model_validate(only.model_dump(mode="json")) == only


def test_settings_survive_the_way_to_the_ingress() -> None:
    settings = load_settings({"models": [{"name": "qwen", "variants": [SPOT, L40S]}]})
    copied = AppSettings.model_validate(settings.model_dump(mode="json"))

    assert copied.models[0].engines() == settings.models[0].engines()


def test_engine_args_and_env_are_merged() -> None:
    given = {**SPOT, "engine_args": {"block_size": 32}, "env": {"B": "2"}}
    (spot,) = model(given, engine_args={"seed": 1}, env={"A": "1", "B": "1"}).engines()

    assert spot.engine_args == {"seed": 1, "block_size": 32}
    assert spot.env == {"A": "1", "B": "2"}


def test_null_overrides_a_setting() -> None:
    (spot,) = model({**SPOT, "accelerator_type": None, "model": None}).engines()

    assert spot.accelerator_type is None
    assert spot.model == "embedded", "a null model is none of the variant's own"


def test_other_weights_keep_the_tokenizer_of_the_model() -> None:
    (copy,) = model({**L40S, "model": "org/qwen-awq"}, model="org/qwen", revision="a").engines()

    assert (copy.model, copy.revision, copy.tokenizer) == ("org/qwen-awq", None, "org/qwen")


@pytest.mark.parametrize(
    ("variants", "problem"),
    [
        ([SPOT, SPOT], "two variants have this name"),
        ([{**SPOT, "tokenizer": "other"}], "tokenizer = 'other': is the same for all variants"),
        ([{**SPOT, "max_model_len": 512}], "max_model_len = 512: is the same for all variants"),
        ([{**SPOT, "task": "embed"}], "task = 'embed': is the same for all variants"),
        ([{**SPOT, "speed": 2}], "variants[0].speed = 2: no such setting"),
        ([{"name": "spot"}], "usd_per_hour: required"),
        ([{**SPOT, "usd_per_hour": -1}], "variants[0].usd_per_hour = -1"),
        (
            [L40S, {**SPOT, "gpus_per_replica": 2}],
            "variants[1]: gpus_per_replica = 2 must equal",
        ),
        ([{**SPOT, "gpus_per_replica": 2}], "variants[0]: gpus_per_replica = 2 must equal"),
        ([{**SPOT, "engine_args": {"nonsense": 1}}], "variants[0].engine_args.nonsense = 1"),
        ([{**SPOT, "engine_args": {"max_logprobs": 9}}], "max_logprobs = 9: is the same for all variants"),
    ],
)
def test_errors_name_key_and_value(variants: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        model(*variants)

    assert problem in str(raised.value)


def test_streams_continue_on_the_same_weights_only_by_default() -> None:
    fp8 = {"name": "fp8", "usd_per_hour": 1, "quantization": "fp8"}
    spot, on_demand, quantised = model(SPOT, {"name": "on-demand", "usd_per_hour": 3.7}, fp8).engines()

    assert model_identity(spot) == model_identity(on_demand) != model_identity(quantised)


def test_a_setting_lets_streams_continue_on_other_weights() -> None:
    spot, quantised = model(SPOT, L40S, continue_on_other_weights=True).engines()

    assert model_identity(spot) == model_identity(quantised)


def test_nodes_of_one_gpu_have_one_speed() -> None:
    on_demand, spot, l40s = model({"name": "on-demand", "usd_per_hour": 3.7}, SPOT, L40S).engines()

    assert speed_identity(on_demand) == speed_identity(spot) != speed_identity(l40s)
    assert engine_identity(on_demand) != engine_identity(spot)
