"""LoRA adapters with random weights for the embedded model, as PEFT writes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, LAYERS, VALUES = 256, 2, 128


def write_adapter(
    folder: Path,
    seed: int = 0,
    rank: int = 4,
    hidden: int = HIDDEN,
    values: int = VALUES,
    layers: int = LAYERS,
    module: str = "v_proj",
    prefix: str = "base_model.model.model.",
    **config: Any,
) -> Path:
    """Write an adapter of one projection in each layer. Its weights are large enough to change answers."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    tensors = {}
    for layer in range(layers):
        name = f"{prefix}layers.{layer}.self_attn.{module}"
        tensors[f"{name}.lora_A.weight"] = generator.standard_normal((rank, hidden), np.float32)
        tensors[f"{name}.lora_B.weight"] = generator.standard_normal((values, rank), np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    given = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [module]}
    (folder / "adapter_config.json").write_text(json.dumps(given | config))
    return folder
