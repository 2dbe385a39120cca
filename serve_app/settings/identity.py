"""The settings that decide a replica's speed and KV cache, as one sentence that an operator can read."""

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from serve_app.settings.tree import ModelSettings

# Each decides the step time or the size of the KV cache, and is named where it is not the default.
# `max_model_len` is not one of them: a replica reports the size of its KV cache, and steps are no slower.
_DECISIVE = (
    "tokenizer",
    "dtype",
    "quantization",
    "pipeline_parallel_size",
    "kv_cache_memory_bytes",
    "max_num_batched_tokens",
    "max_num_seqs",
    "enable_prefix_caching",
    "enforce_eager",
    "task",
)
# The identity is logged and served by the API, and engine arguments may hold a token of a hub.
_SECRET = re.compile(r"(token|key|secret|password)$", re.IGNORECASE)


def engine_identity(model: ModelSettings) -> str:
    """Return weights, hardware and the arguments that decide the speed of a replica of `model`.

    Two settings with the same identity make replicas of the same speed, unless the weights of a folder or
    branch change, or vLLM does. `weights.model_identity` says whether two replicas serve the same model.
    """
    weights = model.model if model.revision is None else f"{model.model}@{model.revision}"
    return ", ".join([f"{weights} on {_hardware(model)}", *_arguments(model)])


def speed_identity(model: ModelSettings) -> str:
    """Return `engine_identity`, without custom resources if the type of the GPU is named.

    Custom resources may stand for a kind of hardware. Beside a named GPU they only select nodes of it.
    """
    named = model.device == "gpu" and model.accelerator_type is not None
    return engine_identity(model.model_copy(update={"resources": {}}) if named else model)


def identity_number(identity: str) -> float:
    """Return a number for `identity`, because reports of replicas contain only numbers."""
    return float(zlib.crc32(identity.encode()))


def _hardware(model: ModelSettings) -> str:
    if model.device == "cpu":
        kind = f"{model.cpus_per_replica:g} x CPU"  # vLLM computes in as many threads
    else:
        kind = f"{model.ranks} x {model.accelerator_type or 'any GPU'}"
    return " with ".join([kind, *sorted(model.resources)])


def _arguments(model: ModelSettings) -> Iterator[str]:
    fields = type(model).model_fields
    for name in _DECISIVE:
        value = getattr(model, name)
        if value != fields[name].default:
            yield f"{name}={value}"
    share = model.gpu_memory_utilization
    if model.kv_cache_memory_bytes is None and share != fields["gpu_memory_utilization"].default:
        yield f"gpu_memory_utilization={share:g}"
    if (lora := model.lora) is not None:
        yield f"adapters of rank {lora.max_rank}, {lora.max_loaded} at once"
    for name, value in sorted(without_secrets(model.engine_args).items()):
        yield f"{name}={value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)}"
    for name, value in sorted(without_secrets(model.env).items()):
        if name.startswith("VLLM_"):
            yield f"{name}={value}"


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` without secrets, at every depth."""
    return {
        name: without_secrets(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if not _SECRET.search(name)
    }
