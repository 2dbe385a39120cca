"""Workers that refuse an adapter which they cannot apply in full.

vLLM 0.32 skips tensors of modules that the model does not have, and pads narrow tensors with zeros. Such an
adapter is served as the base model, or at another strength.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm.lora.layers import (
    FusedMoE3DWithLoRA,
    FusedMoEWithLoRA,
    LogitsProcessorWithLoRA,
    VocabParallelEmbeddingWithLoRA,
)
from vllm.lora.lora_model import LoRAModel
from vllm.lora.model_manager import LoRAModelManager
from vllm.lora.worker_manager import WorkerLoRAManager
from vllm.model_executor.models.utils import is_pp_missing_parameter

from serve_app.engine.continuing_core import ContinuingWorker
from serve_app.patches.vllm import Method, wrap_method

Sizes = tuple[int, int, int] | None
"""The inputs and the outputs of a module, and the ranks that its two tensors have, one for each expert. None
if vLLM splits the tensors by rules of its own, and checks them meanwhile."""


class CheckingWorker(ContinuingWorker):
    """A worker extension without methods: because of it, every worker imports this module."""


def check_fit(adapter: LoRAModel, manager: LoRAModelManager) -> None:
    """Check that each tensor belongs to a module of the model, and has the shape of the module and the rank.

    Raises:
        ValueError: otherwise, with the module, and what was expected.
    """
    if not adapter.loras and not adapter.modules_to_save:
        raise ValueError("adapter_model.safetensors has no tensors of an adapter")
    known = dict(_modules(manager))
    for name, weights in adapter.loras.items():
        if is_pp_missing_parameter(f"{name}.", manager.model):  # another pipeline stage has it
            continue
        if name not in known:
            alike = [one for one in known if one.rpartition(".")[2] == name.rpartition(".")[2]]
            example = min(alike or known, key=len)
            raise ValueError(f"{name}: no module with this name takes an adapter; one that does is {example}")
        if (sizes := known[name]) is None:
            continue
        inputs, outputs, ranks = sizes
        rank = weights.rank * ranks
        for tensor, given, shape in (
            ("lora_A", weights.lora_a, (rank, inputs)),
            ("lora_B", weights.lora_b, (outputs, rank)),
        ):
            found = "no tensor" if given is None else tuple(given.shape)
            if found != shape:
                raise ValueError(
                    f"{name}.{tensor}: {found} in adapter_model.safetensors, but the module takes {shape} "
                    f"with the rank {weights.rank} of adapter_config.json"
                )


def _modules(manager: LoRAModelManager) -> Iterator[tuple[str, Sizes]]:
    """Yield the name of each module as an adapter has it, and its sizes on all GPUs together."""
    for name, module in manager.modules.items():
        for one, sizes in _parts(name, module, manager.packed_modules.get(name)):
            yield one, sizes
            if manager.is_pooling_model:  # vLLM looks for both names
                yield one.removeprefix("model."), sizes


def _parts(name: str, module: Any, packed: list[str] | None) -> Iterator[tuple[str, Sizes]]:
    base = module.base_layer
    if isinstance(module, FusedMoEWithLoRA):
        config, experts = module.moe_config, module.global_num_experts
        hidden = config.hidden_dim_unpadded
        inner = config.intermediate_size_per_partition_unpadded * module.tp_size
        if isinstance(module, FusedMoE3DWithLoRA):
            yield f"{name}.base_layer", (hidden, 2 * inner, experts)
            yield name, (inner, hidden, experts)
        for number, part in enumerate(packed or ()):  # of each expert: gate, down and up, or up and down
            down = number % (3 if config.is_act_and_mul else 2) == 1
            sizes = (inner, hidden, 1) if down else (hidden, inner, 1)
            yield part, None if module.enable_moe_shared_loras else sizes
    elif isinstance(module, LogitsProcessorWithLoRA):
        yield name, (module.hidden_size, base.vocab_size, 1)
    elif isinstance(module, VocabParallelEmbeddingWithLoRA):
        yield name, (base.org_vocab_size, base.embedding_dim, 1)
    else:
        outputs = getattr(base, "output_sizes", [base.output_size])
        if heads := getattr(base, "total_num_kv_heads", 0):  # `output_sizes` counts copies of them, too
            outputs = [outputs[0], heads * base.head_size, heads * base.v_head_size]
        if packed is None:
            yield name, (base.input_size, sum(outputs), 1)
        else:
            whole = outputs if len(packed) == len(outputs) else [None] * len(packed)
            for part, size in zip(packed, whole, strict=True):
                yield part, None if size is None else (base.input_size, size, 1)


def _refuse_misfits(load: Method) -> Method:
    def wrapped(manager: WorkerLoRAManager, request: Any) -> LoRAModel:
        adapter = load(manager, request)
        check_fit(adapter, manager._adapter_manager)
        return adapter

    return wrapped


wrap_method(WorkerLoRAManager, "_load_adapter", _refuse_misfits)
