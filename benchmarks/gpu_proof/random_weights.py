"""Stage `model`: which model, and where its weights come from; models with random weights.

Random weights serve on machines without a network. An engine takes as long with them as with trained ones:
its work depends on shapes alone. The tokenizer is the embedded model's: its 2,048 tokens are token ids of
every vocabulary here.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.progress import say
from benchmarks.gpu_proof.bench import Bench
from benchmarks.gpu_proof.shapes import SHAPES, parameters
from benchmarks.gpu_proof.store import CannotError
from serve_app.settings.tree import EMBEDDED
from serve_app.weights import embedded_model_path

_BYTES = 2
"""Bytes of one weight in bfloat16."""
_SHARD = 4 << 30
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
"""The `quantization_config` of checkpoints with weights of four bits, as AutoAWQ writes it."""


def find_model(bench: Bench) -> dict[str, Any]:
    """Return the model for vLLM to load, and how. Makes random weights where the options ask for them."""
    options = bench.options
    if options.random_weights is not None:
        shape = options.random_weights
        how = "written" if options.checkpoint else "made up by vLLM while it starts"
        say(f"random weights of {shape} ({parameters(shape) / 1e6:,.1f} million parameters), {how}")
        try:
            folder = make(shape, bench.store.folder.resolve() / "models", checkpoint=options.checkpoint)
        except OSError as error:
            raise CannotError(f"the model cannot be written: {error.strerror}") from None
        return {
            "model": str(folder),
            "title": f"random weights of {shape}, {how}",
            "parameters": parameters(shape),
            "load_format": "auto" if options.checkpoint else "dummy",
        }
    if options.model is None or options.model == EMBEDDED:
        return {"model": str(embedded_model_path()), "title": "the embedded model", "load_format": "auto"}
    folder = Path(options.model)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise CannotError(f"--model = {folder}: the folder has no config.json")
    name = str(folder.resolve()) if folder.is_dir() else options.model
    return {"model": name, "title": options.model, "load_format": "auto"}


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
