"""Turn model settings into vLLM's own argument namespace."""

import os
import socket
from argparse import Namespace
from typing import Any

from vllm.config import StructuredOutputsConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from serve_app.engine.continuing_core import let_core_continue, let_workers_check
from serve_app.env import ZYGOTE
from serve_app.patches.vllm_compat import OWN_STREAMS, make_arg_parser
from serve_app.settings.tree import EMBEDDED, ModelSettings
from serve_app.weights import embedded_model_path

_DEFAULT_CPU_KV_CACHE_BYTES = 256 << 20
# It frees a GPU sooner than vLLM's own "uni" does. On the CPU vLLM replaces "uni" by "mp", because "mp" pins
# OpenMP threads. With the model in the engine core's process, a replica has one process less (0.5 GB). Two
# processes would spin on their shared memory, and on two cores nothing else would run. Ray gives OpenMP as
# many threads as the replica has CPUs.
_IN_PROCESS_EXECUTOR = "serve_app.patches.vllm.InProcessExecutor"
# Settings with vLLM's name and meaning. The other settings are Tideserve's own.
_PASSED = (
    "revision",
    "tokenizer",
    "dtype",
    "quantization",
    "load_format",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "enable_prefix_caching",
    "enforce_eager",
    "scheduling_policy",
    "trust_remote_code",
    "tool_call_parser",
    "reasoning_parser",
    "chat_template",
)


def vllm_overrides(model: ModelSettings) -> dict[str, Any]:
    """Return the vLLM arguments that the settings give. All other arguments keep vLLM's defaults."""
    values: dict[str, Any] = {name: value for name in _PASSED if (value := getattr(model, name)) is not None}
    values["allowed_media_domains"] = list(model.allowed_media_domains)
    values["model"] = str(embedded_model_path()) if model.model == EMBEDDED else model.model
    values["served_model_name"] = [model.name]
    values["enable_auto_tool_choice"] = model.tool_call_parser is not None
    # Tideserve's own stat logger reads the step statistics. vLLM's default loggers would count them again.
    values["disable_log_stats"] = True
    # This adds the batch and the prefill tokens to a step's statistics. Only vLLM's default loggers, which
    # are off, would print a line per step.
    values["enable_logging_iteration_details"] = True
    values["enable_log_requests"] = False
    values["structured_outputs_config"] = StructuredOutputsConfig(
        backend=model.structured_output.backend,
        disable_any_whitespace=model.structured_output.compact,
    )
    if (lora := model.lora) is not None:
        values.update(enable_lora=True, max_lora_rank=lora.max_rank, max_loras=lora.max_loaded)
        # One more, so that a new adapter is loaded before another is unloaded: it may be broken.
        values["max_cpu_loras"] = lora.max_cached + 1
    if model.task in ("embed", "classify"):
        values.update(runner="pooling", convert=model.task)
    if model.task != "generate" and model.enable_prefix_caching:
        del values["enable_prefix_caching"]  # vLLM's default: with an encoder's cache it would not start
    if model.device == "cpu":
        values.setdefault("kv_cache_memory_bytes", _DEFAULT_CPU_KV_CACHE_BYTES)
    values["distributed_executor_backend"] = _IN_PROCESS_EXECUTOR
    if model.ranks > 1:
        # Processes fork from the node's zygote. Ray's executor opens a Ray job, which no zygote serves.
        values["distributed_executor_backend"] = "ray" if model.spans_nodes else "mp"
    values.update(model.engine_args)
    return values


def vllm_namespace(model: ModelSettings) -> Namespace:
    """Return every argument of vLLM's API server, as if parsed from a command line."""
    namespace: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    for name, value in vllm_overrides(model).items():
        setattr(namespace, name, value)
    return namespace


def engine_config(namespace: Namespace) -> VllmConfig:
    """Return vLLM's configuration of an engine. Raises vLLM's own ValueError on a bad value.

    A folder that is gone is a ValueError too: vLLM would take it for a malformed name of a repository.

    vLLM leaves the warm-up of kernels out for an eager engine. On a GPU that has it all the same: otherwise
    nvcc would run in the step of the first request with `top_p`.
    """
    if os.path.isabs(namespace.model) and not os.path.exists(namespace.model):
        raise ValueError(
            f"model = {namespace.model!r}: no such folder on node {socket.gethostname()}; put it on every "
            "node that may run the model, or correct the path"
        )
    config = AsyncEngineArgs.from_cli_args(namespace).create_engine_config()
    if config.device_config.device_type == "cuda" and namespace.enforce_eager:
        config.kernel_config.enable_jit_warmup = True
    parallel = config.parallel_config
    if parallel.use_ray and parallel.ray_runtime_env:
        # Ray is imported in a zygote for one job, and each engine core of Ray's executor opens its own. So
        # each start left a zygote of 0.7 GB on each node. These workers import for themselves.
        variables = {**parallel.ray_runtime_env.get("env_vars", {})}
        variables.pop(ZYGOTE, None)
        parallel.ray_runtime_env = {**parallel.ray_runtime_env, "env_vars": variables}
    if OWN_STREAMS:
        let_core_continue(config)
    if config.lora_config is not None:
        let_workers_check(config)
    return config
