"""`config.json` of every family, and configurations that are not understood."""

from typing import Any

import pytest

from serve_app.settings.fit.architecture import UnknownArchitectureError, read_architecture
from serve_app.settings.fit.families import parser_table, parsers_of
from tests.settings.fit.models import MODELS

LLAMA = MODELS["meta-llama/Meta-Llama-3.1-8B"].config


@pytest.mark.parametrize("name", MODELS)
def test_each_public_model_is_read(name: str) -> None:
    found = read_architecture(MODELS[name].config)
    assert found.depth > 0 < found.hidden
    assert bool(found.layers) == (name != "BAAI/bge-m3")


def test_families_cover_sizes_and_quantisations() -> None:
    families = {model.family for model in MODELS.values()}
    assert families == {"dense", "moe", "mla", "hybrid", "sliding", "vision", "audio", "embedding"}
    methods = {read_architecture(model.config).quantization for model in MODELS.values()}
    assert methods >= {None, "fp8", "awq", "gptq", "mxfp4"}
    assert (
        min(model.bytes for model in MODELS.values()) < 1e9 < 6.7e11 < max(m.bytes for m in MODELS.values())
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": None}, "architectures = None"),
        ({"hidden_size": "big"}, "hidden_size = big"),
        ({"hidden_size": None}, "hidden_size: not given"),
        ({"hidden_size": 0}, "hidden_size = 0"),
        ({"vocab_size": 10**400}, "vocab_size = 1000"),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1"),
        ({"layer_types": ["full_attention", "quantum"]}, "'quantum'"),
        ({"compress_ratios": [0, 4]}, r"compress_ratios = \[0, 4\]"),
        ({"linear_attn_config": {"kda_layers": 3}}, "unknown form: KeyError"),
    ],
)
def test_what_is_not_understood_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnknownArchitectureError, match=named):
        read_architecture({**LLAMA, **change})


@pytest.mark.parametrize(
    ("change", "heads"),
    [
        ({"multi_query": True}, 1),
        ({"multi_query": True, "new_decoder_architecture": True}, 8),
        ({"num_key_value_heads": None, "num_attention_groups": 4}, 4),
        ({"num_key_value_heads": None, "attn_config": {"kv_n_heads": 2}}, 2),
    ],
)
def test_kv_heads_are_those_of_vllm(change: dict[str, Any], heads: int) -> None:
    assert [layer.heads for layer in read_architecture({**LLAMA, **change}).layers] == [heads]


def test_model_max_length_is_the_context_as_in_vllm() -> None:
    assert read_architecture({**LLAMA, "model_max_length": 200_000}).longest == 200_000


def test_every_parser_is_registered_in_vllm() -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for cell, registered in (
        (1, ToolParserManager.list_registered()),
        (2, ReasoningParserManager.list_registered()),
    ):
        named = {parser for row in parser_table() for _, parser in row[cell]}
        assert named <= set(registered)


@pytest.mark.parametrize(
    ("types", "template", "parsers"),
    [
        (("qwen2",), "<tool_call>", ("hermes", None)),
        (("qwen3_moe",), "<function=name> <tool_call>", ("qwen3_coder", None)),
        (("qwen3",), "<tool_call> <think>", ("hermes", "qwen3")),
        (("llama",), "Environment: ipython", ("llama3_json", None)),
        (("deepseek_v3",), "tool▁call <think>", ("deepseek_v31", "deepseek_r1")),
        (("gpt_oss",), "", ("openai", "openai_gptoss")),
        (("phi3",), "<|tool|>", ("phi4_mini_json", None)),
        (("gemma3", "gemma3_text"), "<start_of_turn>", (None, None)),
        (("qwen3",), None, (None, None)),
    ],
)
def test_parsers_follow_from_family_and_template(
    types: tuple[str, ...], template: str | None, parsers: tuple[str | None, str | None]
) -> None:
    assert parsers_of(types, template)[:2] == parsers
