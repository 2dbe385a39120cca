"""The `config.json` of published models (Meta's Llama 3.1 and 3.2), and of one for rehearsals on a CPU."""

from collections.abc import Mapping
from typing import Any


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


def parameters(shape: str) -> int:
    """Return how many weights a shape has."""
    config = SHAPES[shape]
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads, head = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * hidden * inter + 2 * hidden
    embeddings = config["vocab_size"] * hidden * (1 if config["tie_word_embeddings"] else 2)
    return int(config["num_hidden_layers"] * layer + embeddings + hidden)
