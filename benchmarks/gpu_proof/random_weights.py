"""Models of real architectures with random weights, for machines without a network.

An engine takes as long with them as with trained ones: its work depends on shapes alone. The tokenizer is the
embedded model's: its 2,048 tokens are token ids of every vocabulary here.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serve_app.weights import embedded_model_path

_BYTES = 2
"""Bytes of one weight in bfloat16."""
_SHARD = 4 << 30
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
"""The `quantization_config` of checkpoints with weights of four bits, as AutoAWQ writes it."""


def _llama(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, head: int, *,
    factor: float, tied: bool = True, vocabulary: int = 128256, context: int = 131072,
) -> dict[str, Any]:  # fmt: skip
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": context,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 2043,
        "torch_dtype": "bfloat16",
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
    "llama-3.1-8b": _llama(4096, 14336, 32, 32, 8, 128, factor=8.0, tied=False),
    "llama-3.2-3b": _llama(3072, 8192, 28, 24, 8, 128, factor=32.0),
    "llama-3.2-1b": _llama(2048, 8192, 16, 32, 8, 64, factor=32.0),
    "tiny": _llama(256, 512, 2, 4, 2, 64, factor=8.0, vocabulary=2048, context=4096),
}
"""The `config.json` of published models (Meta's Llama 3.1 and 3.2), and of one for rehearsals on a CPU."""


def parameters(shape: str) -> int:
    """Return how many weights a shape has."""
    config = SHAPES[shape]
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads, head = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * hidden * inter + 2 * hidden
    embeddings = config["vocab_size"] * hidden * (1 if config["tie_word_embeddings"] else 2)
    return int(config["num_hidden_layers"] * layer + embeddings + hidden)


def make(shape: str, folder: Path, *, checkpoint: bool = False, awq: bool = False) -> Path:
    """Write a model folder, with `checkpoint` including weights, and return it. An existing one is kept.

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

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        shapes.pop("lm_head.weight", None)
    generator = torch.Generator().manual_seed(0)
    shard: dict[str, torch.Tensor] = {}
    index: dict[str, str] = {}

    def flush() -> None:
        name = f"model-{len(set(index.values())):05}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, shape in shapes.items():
        tensor = torch.ones(shape, dtype=torch.bfloat16)
        if "norm" not in name:
            tensor.normal_(0.0, 0.02, generator=generator)
        if shard and sum(one.nbytes for one in shard.values()) + tensor.nbytes > _SHARD:
            flush()
        shard[name] = tensor
    flush()
    document = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(document, encoding="utf-8")
