"""Stages `quantization` and `tensor-parallel`: the step time of the model run in other ways."""

from typing import Any

from benchmarks.gpu_proof.bench import Bench, plain
from benchmarks.gpu_proof.first_token import first_token_s
from benchmarks.gpu_proof.outcome import CannotError
from benchmarks.gpu_proof.random_weights import make
from benchmarks.gpu_proof.step_time import law, sweep
from serve_app.cli.command_error import CommandError

_USUAL_S, _LEAST_S = 20.0, 16.0
_FIRST_TOKEN_S = 120.0
_MXFP8 = (10, 0)
"""The least compute capability with mxfp8 in its tensor cores."""


def quantization(bench: Bench) -> dict[str, Any]:
    """Measure the step time with each quantization that the device has and that needs no prepared weights."""
    found: dict[str, Any] = {
        name: _measure(bench, **changes) for name, changes in _quantizations(bench).items()
    }
    if bench.options.random_weights is None:
        found["left out"] = "awq, gptq and bitsandbytes, which need weights that were prepared for them"
    return found


def _quantizations(bench: Bench) -> dict[str, dict[str, Any]]:
    if not bench.on_gpu:
        return {"fp8_per_channel": {"quantization": "fp8_per_channel"}}
    ways: dict[str, dict[str, Any]] = {
        "fp8": {"quantization": "fp8"},
        "KV cache of fp8": {"engine_args": {"kv_cache_dtype": "fp8"}},
    }
    if tuple(bench.machine["gpus"][0]["capability"]) >= _MXFP8:
        ways["mxfp8"] = {"quantization": "mxfp8"}
    if (shape := bench.options.random_weights) is not None:
        model = make(shape, bench.store.folder.resolve() / "models", awq=True)
        ways["awq, 4 bits"] = {"model": str(model), "load_format": "dummy"}
    return ways


def tensor_parallel(bench: Bench) -> dict[str, Any]:
    """Measure the step time with the model on two GPUs, and on all of them."""
    gpus = len(bench.machine["gpus"])
    if gpus < 2:
        raise CannotError(f"it takes two GPUs, and there {'is one' if gpus == 1 else 'is none'}")
    return {
        str(ranks): _measure(bench, tensor_parallel_size=ranks)
        for ranks in sorted({2, 1 << (gpus.bit_length() - 1)})
    }


def _measure(bench: Bench, **changes: Any) -> dict[str, Any]:
    """The law of a variant and its steps beside the plain model's; the reason where vLLM refuses it."""
    try:
        url = bench.url(bench.model(**changes))
    except CommandError as error:
        return {"refused": str(error)}
    _, fitted = sweep(url, bench.seconds(_USUAL_S, _LEAST_S))
    found = law(fitted)
    before = bench.figures("step-time")["law"]["coefficients"]
    return {
        "law": found,
        "ratios": {
            name: plain(value / before[name]) for name, value in found["coefficients"].items() if before[name]
        },
        "first_token_s": plain(first_token_s(url, _FIRST_TOKEN_S)),
    }
