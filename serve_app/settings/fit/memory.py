"""The bytes of a model on each GPU, as vLLM computes or measures them."""

from collections.abc import Mapping
from dataclasses import dataclass

from serve_app.gpus import GIB
from serve_app.settings.fit.architecture import Architecture, Layers

CPU_BLOCK = 128
"""Tokens of a block of the KV cache on the CPU (`vllm/platforms/cpu.py`)."""


@dataclass(frozen=True, slots=True)
class GpuKind:
    """A kind of GPU: the memory that CUDA reports, the vendor's bandwidth and bf16 peak without sparsity."""

    ray_name: str | None  # None: Ray has no name for it
    memory_gib: float
    bandwidth: float = 0.0  # bytes/s; 0 if not known
    flops: float = 0.0


GPUS: Mapping[str, GpuKind] = {
    "a100-80gb": GpuKind("A100", 79.25, 2.039e12, 312e12),
    "a100-40gb": GpuKind("A100-40G", 39.4, 1.555e12, 312e12),
    "h100": GpuKind("H100", 79.1, 3.35e12, 989e12),
    "h200": GpuKind("H200", 139.8, 4.8e12, 989e12),
    "b200": GpuKind("B200", 178.4, 8.0e12, 2250e12),
    "l40s": GpuKind("L40S", 44.4, 0.864e12, 362e12),
    "l4": GpuKind("L4", 22.03, 0.3e12, 121e12),
    "a10g": GpuKind("A10G", 22.06, 0.6e12, 70e12),
    "rtx4090": GpuKind(None, 23.5, 1.008e12, 165e12),
}
GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class Sharding:
    """How the GPUs of a replica share a model, and the batch of its engine."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    batch_tokens: int = 8192
    sequences: int = 256
    kv_element_bytes: int = 2
    block: int = 16  # tokens; vLLM's default on GPUs

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True)
class _Pages:
    layers: int
    page: int  # bytes of one block of one layer
    block: int  # tokens
    window: int | None  # tokens that a sequence keeps; None for all, 0 for a state
    fixed: int  # of a state, its blocks


def kv_bytes(model: Architecture, tokens: int, over: Sharding) -> int:
    """Return the KV cache that one sequence of `tokens` takes on one GPU, with vLLM's padding.

    As `get_kv_cache_groups` and `_max_memory_usage_bytes_from_groups` in `vllm/v1/core/kv_cache_utils.py`:
    layers of one kind share groups, and all groups have blocks of equal size.
    """
    pages = _pages(model, over)
    if len({each.window for each in pages}) < 2:  # nothing is padded
        return sum(each.layers * each.page * _blocks(each, tokens, over) for each in pages)
    largest, total = max(each.page for each in pages), 0
    least, most = min(each.layers for each in pages), max(each.layers for each in pages)
    size = most if most < 1.5 * least else least
    for each in pages:
        ratio = largest // each.page if largest % each.page == 0 and each.window != 0 else 1
        wide = _Pages(each.layers, largest, each.block * ratio, each.window, each.fixed)
        total += largest * size * -(-each.layers // size) * _blocks(wide, tokens, over)
    return total


def _pages(model: Architecture, over: Sharding) -> list[_Pages]:
    """Return the pages of each kind of layer, on the GPU with the most layers."""
    attention = [layer for layer in model.layers if layer.state is None]
    block, token = over.block, max((_token_bytes(layer, over) for layer in attention), default=0)
    state = max((_state_bytes(layer, over) for layer in model.layers), default=0)
    if state and token:  # `_align_hybrid_block_size` in `vllm/platforms/interface.py`
        step = max(block, 128 if model.is_mla else 0)
        block = max(block, step * -(-state // (step * token)))
    found = []
    for layer in model.layers:
        count, is_state = -(-layer.count // over.pipeline_parallel), layer.state is not None
        page = max(state, block * token) if is_state else block * _token_bytes(layer, over)
        kept = (layer.state.kept if attention else 1) if layer.state is not None else layer.fixed
        found.append(_Pages(count, page, block, 0 if is_state else layer.window, kept))
    return found


def _token_bytes(layer: Layers, over: Sharding) -> int:
    heads = -(-layer.heads // over.tensor_parallel) if layer.heads else 1
    return heads * layer.elements * (layer.element_bytes or over.kv_element_bytes)


def _state_bytes(layer: Layers, over: Sharding) -> int:
    if (state := layer.state) is None:
        return 0
    groups = state.groups if state.groups % over.tensor_parallel == 0 else over.tensor_parallel
    convolution = (state.kernel - 1) * (state.width + 2 * groups * state.group_width) * 2
    size = 4 if over.block == CPU_BLOCK else state.recurrent_bytes  # float32 on the CPU
    return (convolution + state.recurrent * size) // over.tensor_parallel


def _blocks(each: _Pages, tokens: int, over: Sharding) -> int:
    if each.window == 0:
        return each.fixed
    if each.window is None:
        tokens = each.fixed or tokens
        return -(-tokens // each.block)
    in_flight = (over.pipeline_parallel + 1) * over.batch_tokens  # asynchronous scheduling
    return -(-min(each.window - 1 + in_flight, tokens) // each.block) + 1


def weight_bytes(model: Architecture, total: int, over: Sharding, online: bool = False) -> int:
    """Return the weights on the GPU with the most layers.

    Args:
        total: Bytes of the checkpoint in the dtype that it runs in.
        online: Whether vLLM makes them 8-bit while it loads. Embeddings and the output layer stay.
    """
    width = model.vocabulary * model.hidden * 2
    ends = min(width if model.is_tied else 2 * width, total)
    inner = (total - ends) * (0.5 if online and model.quantization is None else 1)
    stage = -(-model.depth // over.pipeline_parallel) / max(model.depth, 1)
    return int((stage * inner + (ends if over.pipeline_parallel == 1 else width)) / over.tensor_parallel)


def reserved_bytes(model: Architecture, over: Sharding) -> int:
    """Return an estimate of activations, logits, CUDA graphs and NCCL on one GPU.

    vLLM measures them with a batch of `max_num_batched_tokens` (`determine_available_memory` in
    `vllm/v1/worker/gpu_worker.py`). A layer holds its input, output and residual, the projections of
    attention, and its gate and up projections. The sampler has three float32 copies of the logits. Each layer
    takes 0.3 MiB for each size of CUDA graph. An encoder of images or sound counts as 2 GiB.
    """
    rows = model.experts_per_token if model.experts else 0
    width = 4 * model.hidden + 3 * model.intermediate // over.tensor_parallel
    width += rows * (2 * model.hidden + 3 * model.expert_width // over.tensor_parallel)
    activations = 2 * over.batch_tokens * width + 12 * over.sequences * model.vocabulary
    sizes = 3 + min(2 * over.sequences, 256) // 8 + max(min(2 * over.sequences, 512) - 256, 0) // 16
    graphs = 0.3 * (1 << 20) * sizes * model.depth / over.pipeline_parallel
    links = (0.3 + 0.2 * over.tensor_parallel if over.gpus > 1 else 0.1) * GIB
    return int(activations + graphs + links + (2 * GIB if model.is_multimodal else 0))


def longest_that_fits(model: Architecture, budget: float, most: int, over: Sharding) -> int:
    """Return the longest context, at most `most` tokens, of which one sequence fits into `budget` bytes."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if kv_bytes(model, middle, over) <= budget else (low, middle - 1)
    return low if low == most else low - low % 256


def gib(size: float) -> str:
    """Return `61.0 GiB`, or MiB and KiB below one."""
    units = ((name, power) for name, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)))
    name, power = next(((name, power) for name, power in units if size >= 1 << power), ("KiB", 10))
    return f"{size / (1 << power):.1f} {name}"
