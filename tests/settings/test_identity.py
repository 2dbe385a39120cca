from typing import Any

import pytest

from serve_app.settings.identity import engine_identity, identity_number
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings


def model(**settings: Any) -> ModelSettings:
    return ModelSettings(**{"name": "chat", "model": "org/llama-7b", **settings})


@pytest.mark.parametrize(
    ("settings", "identity"),
    [
        ({}, "org/llama-7b on 1 x A100"),
        ({"accelerator_type": None}, "org/llama-7b on 1 x any GPU"),
        ({"device": "cpu", "cpus_per_replica": 1.5}, "org/llama-7b on 1.5 x CPU"),
        (
            {"model": "org/llama-70b", "revision": "v2", "tensor_parallel_size": 4, "quantization": "fp8"},
            "org/llama-70b@v2 on 4 x A100, quantization=fp8",
        ),
        (
            {"gpu_memory_utilization": 0.8, "engine_args": {"enable_expert_parallel": True}},
            "org/llama-7b on 1 x A100, gpu_memory_utilization=0.8, enable_expert_parallel=true",
        ),
        (
            {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
            "org/llama-7b on 8 x A100, pipeline_parallel_size=2",
        ),
        (
            {"accelerator_type": None, "resources": {"pool-l4": 1.0}, "env": {"VLLM_X": "1", "HF_HOME": "/"}},
            "org/llama-7b on 1 x any GPU with pool-l4, VLLM_X=1",
        ),
    ],
)
def test_the_identity_has_weights_hardware_and_changed_settings(
    settings: dict[str, Any], identity: str
) -> None:
    assert engine_identity(model(**settings)) == identity


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float16"},
        {"quantization": "awq"},
        {"kv_cache_memory_bytes": 1 << 30},
        {"max_num_batched_tokens": 4096},
        {"max_num_seqs": 64},
        {"enable_prefix_caching": False},
        {"enforce_eager": True},
        {"tokenizer": "org/other"},
        {"task": "embed"},
        {"engine_args": {"speculative_config": {"method": "ngram"}}},
    ],
)
def test_settings_that_decide_speed_change_the_identity(
    settings: dict[str, Any],
) -> None:
    assert engine_identity(model(**settings)) != engine_identity(model())


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "another-name"},
        {"max_model_len": 4096},
        {"drain_timeout_s": 5.0},
        {"max_ongoing_requests": 7},
        {"load_format": "safetensors"},
        {"tool_call_parser": "hermes"},
        {"env": {"HTTPS_PROXY": "http://proxy"}},
    ],
)
def test_other_settings_do_not_change_the_identity(settings: dict[str, Any]) -> None:
    assert engine_identity(model(**settings)) == engine_identity(model())


def test_no_knob_is_a_setting() -> None:
    assert not set(Knobs.model_fields) & set(ModelSettings.model_fields)


def test_the_identity_has_no_secrets() -> None:
    secret = {"hf_token": "s3cret", "speculative_config": {"model": "org/draft", "api_key": "s3cret"}}
    told = engine_identity(model(engine_args=secret, env={"VLLM_API_KEY": "s3cret"}))

    assert told == 'org/llama-7b on 1 x A100, speculative_config={"model": "org/draft"}'


def test_the_number_is_the_same_in_every_process() -> None:
    assert identity_number("org/llama-7b on 1 x A100") == 454414189.0
