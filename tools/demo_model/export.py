"""Writes a checkpoint in the format that servers load, one atomic file at a time."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tools.demo_model.network import build_generation_config
from tools.demo_model.tokenizer import write_tokenizer


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write bfloat16 weights, configs and tokenizer into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as scratch:
        folder = Path(scratch)
        _write_weights(model, folder / "model.safetensors")
        config = model.config.to_dict() | {"dtype": "bfloat16"}
        type(model.config).from_dict(config).save_pretrained(folder)
        build_generation_config(model.config).save_pretrained(folder)
        write_tokenizer(tokenizer, folder)
        for file in sorted(folder.iterdir()):
            os.replace(file, out / file.name)


def _write_weights(model: LlamaForCausalLM, path: Path) -> None:
    tied = "lm_head.weight"
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != tied
    }
    save_file(tensors, str(path), metadata={"format": "pt"})
    path.chmod(0o644)
