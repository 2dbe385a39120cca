"""`tideserve check` refuses models that cannot fit, and passes what it does not know."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from serve_app.cli.fit_check import fit_problems
from serve_app.settings.load import load_settings
from tests.settings.fit.models import MODELS
from tests.weights.test_model_files import safetensors


def problems(folder: Path, name: str, config: dict[str, Any] | None = None, **settings: Any) -> list[str]:
    model = MODELS[name]
    (folder / "config.json").write_text(json.dumps({**model.config, **(config or {})}))
    index = {"metadata": {"total_size": model.bytes}, "weight_map": {"a": "model-1.safetensors"}}
    (folder / "model-1.safetensors").write_bytes(safetensors("BF16", 8))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    entry = {"name": "m", "model": str(folder), **settings}
    return list(fit_problems(load_settings({"models": [entry]})))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("meta-llama/Meta-Llama-3.1-70B", {"accelerator_type": "A100"}, "2 fits"),
        ("Qwen/Qwen3-32B", {"accelerator_type": "L4", "tensor_parallel_size": 2}, "4 fits"),
        (
            "Qwen/Qwen3-8B",
            {"accelerator_type": "L4", "gpu_memory_utilization": 0.8, "max_model_len": 40_960},
            "max_model_len = 40960: .* fits",
        ),
        ("Qwen/Qwen3-8B", {"tensor_parallel_size": 3}, "must divide the 32 heads"),
        (
            "Qwen/Qwen2.5-0.5B-Instruct",
            {"device": "cpu", "kv_cache_memory_bytes": 64 << 20, "max_model_len": 32_768},
            r"384\.0 MiB|345\.6 MiB",
        ),
    ],
)
def test_models_that_cannot_fit_are_refused(
    name: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    [problem] = problems(tmp_path, name, **settings)
    assert problem.startswith("models[0].")
    assert re.search(words, problem)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("meta-llama/Meta-Llama-3.1-70B", {"accelerator_type": "A100"}),
        ("meta-llama/Meta-Llama-3.1-70B", {"accelerator_type": "A100", "max_model_len": 131_072}),
        ("Qwen/Qwen3-32B", {"accelerator_type": "A10G", "max_model_len": 40_960}),
        ("Qwen/Qwen3-8B", {"accelerator_type": "L4", "max_model_len": 40_960, "gpu_memory_utilization": 0.8}),
        ("google/gemma-4-31B-it", {"accelerator_type": "A100", "max_model_len": 262_144}),
    ],
)
def test_the_named_setting_is_accepted(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    [problem] = problems(tmp_path, name, **settings)
    key = problem.removeprefix("models[0].").partition(" ")[0]
    [value] = re.findall(r"(\d+) fits", problem)
    assert problems(tmp_path, name, **{**settings, key: int(value)}) == []


def test_no_context_of_zero_tokens_is_named(tmp_path: Path) -> None:
    small = {"kv_cache_memory_bytes": 1 << 20, "max_model_len": 4096, "accelerator_type": "L4"}
    [problem] = problems(tmp_path, "Qwen/Qwen3-8B", **small)
    assert "1.0 MiB are there; even 256 do not fit" in problem


def test_a_quantised_cache_of_the_checkpoint_counts_its_bytes(tmp_path: Path) -> None:
    settings = {"accelerator_type": "L4", "kv_cache_memory_bytes": 3 << 30, "max_model_len": 40_960}
    assert problems(tmp_path, "Qwen/Qwen3-8B", **settings) != []
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert problems(tmp_path, "Qwen/Qwen3-8B", {"quantization_config": scheme}, **settings) == []


def test_kv_heads_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 40, "num_key_value_heads": 10}
    [problem] = problems(tmp_path, "Qwen/Qwen3-8B", heads, tensor_parallel_size=4)
    assert "must divide the 40 heads, and divide or multiply the KV heads, as 1, 2, 5, 10" in problem


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("meta-llama/Meta-Llama-3.1-70B", {"accelerator_type": None}),
        ("meta-llama/Meta-Llama-3.1-70B", {"accelerator_type": "TPU-V5E"}),
        ("meta-llama/Meta-Llama-3.1-70B", {"accelerator_type": "A100", "tensor_parallel_size": 4}),
        (
            "meta-llama/Meta-Llama-3.1-70B",
            {"accelerator_type": "A100", "engine_args": {"cpu_offload_gb": 80}},
        ),
        ("meta-llama/Meta-Llama-3.1-70B", {"accelerator_type": "H100", "quantization": "bitsandbytes"}),
        ("meta-llama/Meta-Llama-3.1-70B", {"accelerator_type": "H100", "quantization": "fp8"}),
        ("meta-llama/Meta-Llama-3.1-70B", {"accelerator_type": "A100", "load_format": "dummy"}),
        ("Qwen/Qwen3-32B", {"accelerator_type": "A100"}),
        ("Qwen/Qwen3-8B", {"accelerator_type": "L4", "max_model_len": 200_000}),
    ],
)
def test_what_may_fit_passes(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    assert problems(tmp_path, name, **settings) == []


@pytest.mark.parametrize("content", ["{", "{}", '{"architectures": ["X"], "hidden_size": 1}', "[]"])
def test_files_that_are_not_understood_pass(content: str, tmp_path: Path) -> None:
    assert problems(tmp_path, "Qwen/Qwen3-8B") == []
    (tmp_path / "config.json").write_text(content)
    entry = {"name": "m", "model": str(tmp_path), "accelerator_type": "L4"}
    assert list(fit_problems(load_settings({"models": [entry]}))) == []


def test_weights_of_unknown_dtype_pass(tmp_path: Path) -> None:
    settings = {"accelerator_type": "A100"}
    assert problems(tmp_path, "meta-llama/Meta-Llama-3.1-70B", **settings) != []
    (tmp_path / "model-1.safetensors").unlink()
    entry = {"name": "m", "model": str(tmp_path), **settings}
    assert list(fit_problems(load_settings({"models": [entry]}))) == []


def test_models_that_are_not_here_pass() -> None:
    entry = {"name": "m", "model": "org/unknown", "accelerator_type": "L4"}
    assert list(fit_problems(load_settings({"models": [entry]}))) == []
