import socket
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs

from serve_app.engine.arguments import _PASSED, engine_config, vllm_namespace, vllm_overrides
from serve_app.patches.vllm_compat import make_arg_parser
from serve_app.settings.load import OWNED, known_arguments
from serve_app.settings.tree import ModelSettings
from serve_app.weights import embedded_model_path

_FRONTEND = vars(import_module(make_arg_parser.__module__))["BaseFrontendArgs"]
VLLMS = {field.name for owner in (AsyncEngineArgs, _FRONTEND) for field in fields(owner)}


def overrides(**model: Any) -> dict[str, Any]:
    return vllm_overrides(ModelSettings(name="tide", **model))


def test_names_in_source_match_vllm() -> None:
    assert known_arguments() == VLLMS


def test_a_missing_folder_is_named_with_its_node(tmp_path: Path) -> None:
    namespace = vllm_namespace(ModelSettings(name="tide", model=str(tmp_path / "gone"), device="cpu"))

    with pytest.raises(ValueError, match=f"no such folder on node {socket.gethostname()}; put it on every"):
        engine_config(namespace)


def test_settings_shared_with_vllm_are_not_engine_args() -> None:
    assert set(_PASSED) <= set(ModelSettings.model_fields)
    assert set(_PASSED) <= VLLMS
    assert set(_PASSED) <= OWNED


def test_every_shared_setting_is_passed() -> None:
    given = {name: number for number, name in enumerate(_PASSED, 2)}

    values = vllm_overrides(ModelSettings(name="tide").model_copy(update=given))

    assert {name: values.get(name) for name in given} == given
    assert values["served_model_name"] == ["tide"]


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (
            {},
            {
                "model": str(embedded_model_path()),
                "enable_auto_tool_choice": False,
                "distributed_executor_backend": "serve_app.patches.vllm.InProcessExecutor",
                "kv_cache_memory_bytes": None,
                "chat_template": None,
                "runner": None,
            },
        ),
        ({"model": "org/weights"}, {"model": "org/weights"}),
        (
            {"device": "cpu"},
            {
                "distributed_executor_backend": "serve_app.patches.vllm.InProcessExecutor",
                "kv_cache_memory_bytes": 256 << 20,
            },
        ),
        ({"device": "cpu", "kv_cache_memory_bytes": 1 << 20}, {"kv_cache_memory_bytes": 1 << 20}),
        (
            {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
            {
                "distributed_executor_backend": "mp",
                "tensor_parallel_size": 4,
                "pipeline_parallel_size": 2,
            },
        ),
        (
            {"pipeline_parallel_size": 2, "placement_group_strategy": "PACK"},
            {"distributed_executor_backend": "ray"},
        ),
        ({"tool_call_parser": "hermes"}, {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}),
        ({"task": "embed"}, {"runner": "pooling", "convert": "embed", "enable_prefix_caching": None}),
        (
            {"task": "classify", "enable_prefix_caching": False},
            {"runner": "pooling", "convert": "classify", "enable_prefix_caching": False},
        ),
        ({"task": "transcribe"}, {"runner": None, "convert": None, "enable_prefix_caching": None}),
        (
            {"device": "cpu", "engine_args": {"seed": 7, "distributed_executor_backend": "mp"}},
            {"seed": 7, "distributed_executor_backend": "mp"},
        ),
    ],
)
def test_settings_become_arguments_of_vllm(model: dict[str, Any], values: dict[str, Any]) -> None:
    found = overrides(**model)

    assert {name: found.get(name) for name in values} == values
    assert set(found) <= VLLMS


def test_statistics_are_taken_once_and_nothing_is_logged() -> None:
    values = overrides()
    # vLLM adds the logger that would print steps only where `disable_log_stats` is False.
    assert (values["disable_log_stats"], values["enable_log_requests"]) == (True, False)
    assert values["enable_logging_iteration_details"] is True


def test_the_namespace_is_vllms_own_with_ours_on_top() -> None:
    namespace = vllm_namespace(
        ModelSettings(name="tide", device="cpu", engine_args={"response_role": "tide", "seed": 7})
    )

    assert (namespace.response_role, namespace.seed) == ("tide", 7)
    assert namespace.served_model_name == ["tide"]
    assert namespace.chat_template_content_format == "auto"  # vLLM's default


@pytest.mark.parametrize("parser", ["hermes", "llama3_json"])
def test_the_parsers_our_configurations_name_exist(parser: str) -> None:
    from vllm.tool_parsers import ToolParserManager

    assert ToolParserManager.get_tool_parser(parser) is not None
