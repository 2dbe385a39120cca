"""Workers that refuse an adapter which they cannot apply in full.

vLLM 0.32 skips tensors of modules that the model does not have, and pads narrow tensors with zeros. Such an
adapter is served as the base model, or at another strength.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm.lora.layers import FusedMoE3DWithLoRA, FusedMoEWithLoRA, LogitsProcessorWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.model_manager import LoRAModelManager
from vllm.lora.worker_manager import WorkerLoRAManager
from vllm.model_executor.models.utils import is_pp_missing_parameter

from serve_app.engine.continuing_core import ContinuingWorker
from serve_app.patches.vllm import Method, wrap_method


class CheckingWorker(ContinuingWorker):
    """A worker extension without methods: because of it, every worker imports this module."""


def check_fit(adapter: LoRAModel, manager: LoRAModelManager) -> None:
    """Check that each tensor belongs to a module of the model, and has the shape of the module and the rank.

    Raises:
        ValueError: it does not, with the module, and what was expected.
    """
    if not adapter.loras and not adapter.modules_to_save:
        raise ValueError("adapter_model.safetensors has no tensors of an adapter")
    known = {
        one: sizes
        for name, module in manager.modules.items()
        for part, sizes in _parts(name, module, manager.packed_modules.get(name))
        for one in (part, part.removeprefix("model.") if manager.is_pooling_model else part)  # as vLLM looks
    }
    for name, lora in adapter.loras.items():
        if is_pp_missing_parameter(f"{name}.", manager.model):  # another pipeline stage has it
            continue
        if name not in known:
            alike = [one for one in known if one.endswith(f".{name.rpartition('.')[2]}")] or known
            example = min(alike, key=len)
            raise ValueError(f"{name}: no module with this name takes an adapter; one that does is {example}")
        inputs, outputs, ranks = known[name]
        rank = lora.rank * ranks
        shapes = {"lora_A": (lora.lora_a, (rank, inputs)), "lora_B": (lora.lora_b, (outputs, rank))}
        for tensor, (given, shape) in shapes.items():
            found = given if given is None else tuple(given.shape)
            if found != shape and 0 not in shape:
                why = f"the module takes {shape} with the rank {lora.rank} of adapter_config.json"
                raise ValueError(f"{name}.{tensor}: {found} in adapter_model.safetensors, but {why}")


def _parts(name: str, module: Any, packed: list[str] | None) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield the parts that an adapter has for a module: inputs and outputs on all GPUs, and ranks per tensor.

    A size is 0 if vLLM splits the tensor by rules of its own, and checks it meanwhile.
    """
    base = module.base_layer
    if isinstance(module, FusedMoEWithLoRA):
        config = module.moe_config
        hidden = config.hidden_dim_unpadded
        inner = config.intermediate_size_per_partition_unpadded * module.tp_size
        if isinstance(module, FusedMoE3DWithLoRA):
            yield f"{name}.base_layer", (hidden, 2 * inner, config.num_experts)
            yield name, (inner, hidden, config.num_experts)
        for number, part in enumerate(packed or ()):  # of each expert: gate, down and up, or up and down
            down = number % (3 if config.is_act_and_mul else 2) == 1
            sizes = (inner, hidden, 1) if down else (hidden, inner, 1)
            yield part, (0, 0, 0) if module.enable_moe_shared_loras else sizes
    elif isinstance(module, LogitsProcessorWithLoRA):
        yield name, (module.hidden_size, base.vocab_size, 1)
    elif hasattr(base, "org_vocab_size"):
        yield name, (base.org_vocab_size, base.embedding_dim, 1)
    else:
        outputs = getattr(base, "output_sizes", [base.output_size])
        if heads := getattr(base, "total_num_kv_heads", 0):  # `output_sizes` counts copies of them, too
            outputs = [outputs[0], heads * base.head_size, heads * base.v_head_size]
        if packed is not None and len(packed) != len(outputs):
            outputs = [0] * len(packed)
        for part, size in zip(packed, outputs, strict=True) if packed else [(name, sum(outputs))]:
            yield part, (base.input_size, size, 1)


def _refuse_misfits(load: Method) -> Method:
    def wrapped(manager: WorkerLoRAManager, request: Any) -> LoRAModel:
        adapter = load(manager, request)
        check_fit(adapter, manager._adapter_manager)
        return adapter

    return wrapped


wrap_method(WorkerLoRAManager, "_load_adapter", _refuse_misfits)
