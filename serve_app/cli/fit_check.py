"""Whether each model of an application can fit, by its files on this machine. What is unknown passes."""

from collections.abc import Iterator
from dataclasses import replace

from serve_app.settings.fit.architecture import Architecture, UnknownArchitectureError, read_architecture
from serve_app.settings.fit.memory import GIB, GPUS, Sharding, gib, kv_bytes, longest_that_fits, weight_bytes
from serve_app.settings.tree import AppSettings, ModelSettings
from serve_app.weights.model_files import ModelFiles, ModelFilesError, read_model

_MOST_GIB = {str(kind.ray_name): kind.memory_gib for kind in GPUS.values()}
_MOST_GIB |= {"A100-80G": 79.25, "H100": 93.6}
"""The most memory of a GPU with this name in Ray: an H100 NVL has 94 GB."""
_CHANGE_MEMORY = {
    "cpu_offload_gb", "hf_overrides", "hf_config_path", "decode_context_parallel_size", "block_size",
    "language_model_only", "limit_mm_per_prompt", "offload_backend", "num_gpu_blocks_override",
    "kv_transfer_config", "speculative_config", "weight_transfer_config", "mamba_cache_mode",
}  # fmt: skip
"""Engine arguments that may lower what a model needs."""
_LOADED, _CACHED, _CACHED_STATES = 0.95, 0.9, 0.45
"""The parts of the computed bytes that count: vLLM may load and keep less, such as no draft layers."""
_CPU_CACHE_BYTES = 256 << 20


def fit_problems(settings: AppSettings) -> Iterator[str]:
    """Yield a line for each model that vLLM would refuse to start, with the nearest setting that fits."""
    for index, model in enumerate(settings.models):
        if problem := next(filter(None, map(_problem, model.engines())), ""):
            yield f"models[{index}].{problem}"


def _problem(model: ModelSettings) -> str:
    if _CHANGE_MEMORY & model.engine_args.keys() or model.load_format == "dummy":
        return ""
    try:
        files = read_model(model.model, ask_hub=False, revision=model.revision)
        known = read_architecture(files.config)
    except (ModelFilesError, UnknownArchitectureError):
        return ""
    size = model.tensor_parallel_size
    if not known.shares_heads(size):
        sizes = [str(each) for each in range(1, known.attention_heads) if known.shares_heads(each)]
        must = f"must divide the {known.attention_heads} heads, and divide or multiply the KV heads"
        return f"tensor_parallel_size = {size}: {must}, as {', '.join(sizes[:6])}"
    dtype = str(model.engine_args.get("kv_cache_dtype", "auto"))
    if dtype != "auto" and not dtype.startswith("fp8"):
        return ""
    element = 1 if dtype != "auto" else 4 if model.dtype in ("float", "float32") else 2
    over = Sharding(size, model.pipeline_parallel_size, 0, kv_element_bytes=element)
    if model.device == "cpu":
        return _cache_problem(model, known, over)
    return _gpu_problem(model, files, known, over)


def _gpu_problem(model: ModelSettings, files: ModelFiles, known: Architecture, over: Sharding) -> str:
    most = _MOST_GIB.get(model.accelerator_type or "")
    if most is None or not files.is_certain or model.quantization == "bitsandbytes":
        return ""
    online, total, size = model.quantization is not None, int(_LOADED * files.weights), over.tensor_parallel
    held, budget = weight_bytes(known, total, over, online), model.gpu_memory_utilization * most * GIB
    if held > (budget if model.kv_cache_memory_bytes is None else most * GIB):
        larger = (each for each in (2, 4, 8) if each > size and size * held < 0.9 * each * budget)
        sizes = (replace(over, tensor_parallel=each) for each in larger if known.splits_over(each))
        fitting = (each for each in sizes if not _gpu_problem(model, files, known, each))
        fits = next((each.tensor_parallel for each in fitting), None)
        nearest = f"{fits} fits" if fits else "more pipeline stages, larger GPUs or quantised weights may fit"
        return (
            f"tensor_parallel_size = {size}: {files.model} has {gib(held)} of weights on each GPU, and vLLM "
            f"may take {gib(budget)} of a {model.accelerator_type}; {nearest}"
        )
    return _cache_problem(model, known, over, budget - held)


def _cache_problem(
    model: ModelSettings, known: Architecture, over: Sharding, left: float = _CPU_CACHE_BYTES
) -> str:
    """Return a problem if one sequence of `max_model_len` does not fit into what is left for the KV cache."""
    left, tokens = float(model.kv_cache_memory_bytes or left), model.max_model_len
    if tokens is None or known.longest is None or tokens > known.longest:
        return ""
    part = _CACHED if all(layer.state is None for layer in known.layers) else _CACHED_STATES
    if (needed := part * kv_bytes(known, tokens, over)) <= left:
        return ""
    longest = longest_that_fits(known, left, tokens, over)
    fits = f"{longest} fits" if longest else "even 256 do not fit"
    return (
        f"max_model_len = {tokens}: one sequence takes {gib(needed)} of KV cache on each "
        f"{'GPU' if model.device == 'gpu' else 'replica'}, and at most {gib(left)} are there; {fits}"
    )
