"""Models of real architectures with random weights, for machines without a network.

An engine takes as long with them as with trained ones: its work depends on shapes alone.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serve_app.weights import embedded_model_path

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2043,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}


def _rope(factor: float) -> dict[str, Any]:
    return {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    }


SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": _LLAMA
    | _rope(8.0)
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
    "llama-3.2-3b": _LLAMA
    | _rope(32.0)
    | {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "llama-3.2-1b": _LLAMA
    | _rope(32.0)
    | {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "tiny": _LLAMA
    | _rope(8.0)
    | {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 2048,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
    },
}
"""The `config.json` of published models (Meta's Llama 3.1 and 3.2), and of one for rehearsals on a CPU.

The tokenizer is the embedded model's: its 2,048 tokens are token ids of every vocabulary here.
"""
_BYTES = 2
"""Of one weight in bfloat16."""
_SHARD = 4 << 30


def parameters(shape: str) -> int:
    """Return how many weights a shape has."""
    config = SHAPES[shape]
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads, head = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * hidden * inter + 2 * hidden
    embeddings = config["vocab_size"] * hidden * (1 if config["tie_word_embeddings"] else 2)
    return int(config["num_hidden_layers"] * layer + embeddings + hidden)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
"""The `quantization_config` of checkpoints with weights of four bits, as AutoAWQ writes it."""


def make(shape: str, folder: Path, *, checkpoint: bool = False, awq: bool = False) -> Path:
    """Write a model folder, with `checkpoint` including weights, and return it. What is there is kept.

    Without weights, vLLM's `load_format: dummy` makes them up while it starts, with `awq` those of four bits.

    Raises:
        OSError: if the folder cannot be written, or the disk has no room for the weights.
    """
    model = folder / f"{shape}{'-checkpoint' * checkpoint}{'-awq' * awq}"
    if (model / "config.json").exists():
        return model
    part = folder / f"{model.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(embedded_model_path() / name, part / name)
    if checkpoint:
        needed = parameters(shape) * _BYTES
        free = shutil.disk_usage(folder).free
        if free < needed * 1.1:
            raise OSError(0, f"{needed / 1e9:.1f} GB of weights do not fit into {free / 1e9:.1f} GB of disk")
        _write_weights(SHAPES[shape], part)
    config = {**SHAPES[shape], **({"quantization_config": AWQ} if awq else {})}
    (part / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    part.rename(model)
    return model


def _write_weights(config: Mapping[str, Any], folder: Path) -> None:
    """Write normal weights of standard deviation 0.02 in files of at most 4 GiB, with their index."""
    import torch  # noqa: PLC0415  two seconds that no other use of this module should take
    from safetensors.torch import save_file  # noqa: PLC0415
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

    kind = AutoConfig.for_model(**config)
    with torch.device("meta"):
        shapes = {
            name: value.shape for name, value in AutoModelForCausalLM.from_config(kind).state_dict().items()
        }
    if config["tie_word_embeddings"]:
        shapes.pop("lm_head.weight", None)
    generator = torch.Generator().manual_seed(0)
    shards: list[dict[str, torch.Tensor]] = [{}]
    index: dict[str, str] = {}
    written = size = 0

    def flush() -> None:
        nonlocal written, size
        name = f"model-{written:05}.safetensors"
        save_file(shards[0], folder / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(shards[0], name))
        shards[0], size, written = {}, 0, written + 1

    for name, shape in shapes.items():
        if "norm" in name:
            tensor = torch.ones(shape, dtype=torch.bfloat16)
        else:
            tensor = torch.empty(shape, dtype=torch.bfloat16).normal_(0.0, 0.02, generator=generator)
        if size and size + tensor.nbytes > _SHARD:
            flush()
        shards[0][name] = tensor
        size += tensor.nbytes
    flush()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index}), encoding="utf-8"
    )
