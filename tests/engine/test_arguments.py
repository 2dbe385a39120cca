from dataclasses import fields
from importlib import import_module
from typing import Any

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs

from serve_app.engine.arguments import _PASSED, engine_args, vllm_namespace, vllm_overrides
from serve_app.patches.vllm_compat import make_arg_parser
from serve_app.settings import ModelSettings
from serve_app.settings.load import OWNED, known_arguments
from serve_app.weights import embedded_model_path

_FRONTEND = vars(import_module(make_arg_parser.__module__))["BaseFrontendArgs"]
VLLMS = {field.name for owner in (AsyncEngineArgs, _FRONTEND) for field in fields(owner)}


def overrides(**model: Any) -> dict[str, Any]:
    return vllm_overrides(ModelSettings(name="tide", **model))


def test_the_names_read_off_the_source_are_the_names_vllm_has() -> None:
    assert known_arguments() == VLLMS


def test_every_argument_we_set_is_one_of_vllms() -> None:
    for model in (
        {"device": "cpu", "task": "embed"},
        {"tensor_parallel_size": 2, "quantization": "fp8", "max_model_len": 64, "reasoning_parser": "x"},
    ):
        assert set(overrides(**model)) <= VLLMS


def test_settings_of_the_same_name_mean_the_same_and_cannot_be_passed_through_besides() -> None:
    assert set(_PASSED) <= set(ModelSettings.model_fields)
    assert set(_PASSED) <= VLLMS
    assert set(_PASSED) <= OWNED


def test_what_is_set_is_passed() -> None:
    given = {
        "revision": "main",
        "tokenizer": "org/tokenizer",
        "dtype": "bfloat16",
        "quantization": "fp8",
        "load_format": "fastsafetensors",
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.8,
        "kv_cache_memory_bytes": 1 << 30,
        "max_model_len": 512,
        "max_num_batched_tokens": 1024,
        "max_num_seqs": 7,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "scheduling_policy": "priority",
        "trust_remote_code": True,
        "tool_call_parser": "hermes",
        "reasoning_parser": "qwen3",
        "chat_template": "chat.jinja",
    }

    values = overrides(**given)

    assert {name: values.get(name) for name in given} == given
    assert values["served_model_name"] == ["tide"]


def test_what_is_not_set_keeps_vllms_default() -> None:
    values = overrides()

    for name in ("quantization", "tokenizer", "max_num_batched_tokens", "chat_template"):
        assert name not in values


def test_the_embedded_model_is_a_folder_and_others_are_as_written() -> None:
    assert overrides()["model"] == str(embedded_model_path())
    assert overrides(model="org/weights")["model"] == "org/weights"


def test_a_cpu_replica_runs_its_model_in_process_with_a_bounded_cache() -> None:
    values = overrides(device="cpu")

    assert values["distributed_executor_backend"].endswith(".InProcessExecutor")
    assert values["kv_cache_memory_bytes"] == 256 << 20
    assert overrides(device="cpu", kv_cache_memory_bytes=1 << 20)["kv_cache_memory_bytes"] == 1 << 20


def test_one_gpu_needs_no_executor_of_ours_and_several_take_rays() -> None:
    assert "distributed_executor_backend" not in overrides()
    assert "kv_cache_memory_bytes" not in overrides()
    assert overrides(tensor_parallel_size=4)["distributed_executor_backend"] == "ray"


def test_naming_a_parser_turns_on_automatic_tool_choice() -> None:
    assert overrides(tool_call_parser="hermes")["enable_auto_tool_choice"] is True
    assert overrides(tool_call_parser="hermes")["tool_call_parser"] == "hermes"
    assert overrides()["enable_auto_tool_choice"] is False


def test_an_embedding_model_runs_as_one() -> None:
    values = overrides(task="embed")

    assert (values["runner"], values["convert"]) == ("pooling", "embed")
    assert "runner" not in overrides()


def test_pass_through_arguments_win_over_ours() -> None:
    values = overrides(device="cpu", engine_args={"seed": 7, "distributed_executor_backend": "mp"})

    assert (values["seed"], values["distributed_executor_backend"]) == (7, "mp")


def test_statistics_are_taken_once_and_requests_are_not_logged() -> None:
    values = overrides()

    assert values["disable_log_stats"] is True
    assert values["enable_log_requests"] is False


def test_steps_come_with_what_they_carried_and_no_logger_prints_them() -> None:
    values = overrides()

    assert values["enable_logging_iteration_details"] is True
    assert values["disable_log_stats"] is True  # vLLM adds the logger that would print them where it is False


def test_a_release_that_only_logs_what_steps_carried_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_app.engine.arguments.STEP_DETAILS", False)

    assert overrides()["enable_logging_iteration_details"] is False


def test_the_namespace_is_vllms_own_with_ours_on_top() -> None:
    namespace = vllm_namespace(
        ModelSettings(name="tide", device="cpu", engine_args={"response_role": "tide", "seed": 7})
    )

    assert (namespace.response_role, namespace.seed) == ("tide", 7)
    assert namespace.served_model_name == ["tide"]
    assert namespace.chat_template_content_format == "auto"  # vLLM's default


def test_an_engine_takes_the_namespace() -> None:
    args = engine_args(
        vllm_namespace(ModelSettings(name="tide", device="cpu", dtype="float32", max_num_seqs=3))
    )

    assert isinstance(args, AsyncEngineArgs)
    assert (args.dtype, args.max_num_seqs, args.served_model_name) == ("float32", 3, ["tide"])
    assert args.kv_cache_memory_bytes == 256 << 20


@pytest.mark.parametrize("parser", ["hermes", "llama3_json"])
def test_the_parsers_our_configurations_name_exist(parser: str) -> None:
    from vllm.tool_parsers import ToolParserManager

    assert ToolParserManager.get_tool_parser(parser) is not None
