"""vLLM's own computation: its model classes with weights on the device `meta`, and their KV cache specs."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_TEXT_CLASSES = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
}
"""The language models of classes that need torchvision, which the set for the CPU does not have."""
_TEXT_TYPES = {"qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe"}
BATCH_TOKENS = 2048


class Computed(NamedTuple):
    parameters: int
    sequence_bytes: int  # of the KV cache of one sequence


@contextmanager
def one_process() -> Iterator[None]:
    """vLLM's process groups with this process alone."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        cleanup_dist_env_and_memory,
        init_distributed_environment,
        initialize_model_parallel,
    )

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with set_current_vllm_config(VllmConfig()):  # without a model, there are groups for experts too
        init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
        initialize_model_parallel(1, 1)
    try:
        yield
    finally:
        cleanup_dist_env_and_memory()
        assert not torch.distributed.is_initialized()


def compute(config: dict[str, Any], tokens: int, folder: Path) -> Computed:
    """Return what vLLM computes for `config`, without quantisation and remote code."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.v1.core import kv_cache_utils

    own = {key: value for key, value in config.items() if key not in ("quantization_config", "auto_map")}
    if (text := _TEXT_CLASSES.get(own["architectures"][0])) is not None:
        inner = own["text_config"]
        kind = _TEXT_TYPES.get(inner["model_type"], inner["model_type"])
        own = {**inner, "model_type": kind, "architectures": [text]}
    if "hybrid_override_pattern" in own:  # the experts of Nemotron-H have no CPU kernel, and no cache
        own["hybrid_override_pattern"] = own["hybrid_override_pattern"].replace("E", "-")
    (folder / "config.json").write_text(json.dumps(own))
    batch = own.get("max_source_positions", BATCH_TOKENS)  # an encoder's output takes a whole batch
    arguments = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16",
        max_model_len=tokens, max_num_batched_tokens=batch, enforce_eager=True, block_size=16,
    )  # fmt: skip
    made = arguments.create_engine_config()
    # On the CPU vLLM keeps these states in float32.
    made.cache_config.mamba_ssm_cache_dtype = "float32" if own["model_type"] == "nemotron_h" else "auto"
    with set_current_vllm_config(made):
        with torch.device("meta"):
            model = initialize_model(made)
        current_platform.update_block_size_for_backend(made)
        layers = made.compilation_config.static_forward_context
        found = {
            name: layer.get_kv_cache_spec(made)
            for name, layer in layers.items()
            if hasattr(layer, "get_kv_cache_spec")
        }
    specs = {name: spec for name, spec in found.items() if spec is not None}
    made.cache_config.kv_cache_layout = "LBHNC"
    groups = kv_cache_utils.get_kv_cache_groups(made, specs)
    memory = kv_cache_utils._max_memory_usage_bytes_from_groups(made, groups)
    return Computed(sum(each.numel() for each in model.parameters()), memory)
