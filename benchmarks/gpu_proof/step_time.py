"""Stages `step-time`, `quantization` and `tensor-parallel`: the time of an engine step, as a linear model."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import quantiles
from typing import Any

import httpx

from benchmarks.cold_start.measure import ask
from benchmarks.gpu_proof.bench import NAME, Bench, plain
from benchmarks.gpu_proof.random_weights import make
from benchmarks.gpu_proof.store import CannotError
from replay.capacity.fleet_file import Hardware, make_profile
from replay.capacity.measure import Measurement, measure
from replay.capacity.method import Plan
from replay.fit import COEFFICIENTS, Fit, StepSample, fit
from replay.profile import Profile, load_profile, profile_for
from serve_app.cli import CommandError
from serve_app.policy.capacity_model import StepTime
from serve_app.settings.tree import ModelSettings

_ACCELERATORS = ("H200", "H100", "A100", "L4")
_LEARNED = ("step_base_s", "step_per_sequence_s", "step_per_kv_token_s", "step_per_prefill_token_s")
_MXFP8 = (10, 0)
"""The least compute capability with mxfp8 in its tensor cores."""
_FIRST_TOKEN_S = 120.0


def step_time(bench: Bench) -> dict[str, Any]:
    """Load one replica with prompts and batches of many sizes, and fit the model to its steps."""
    url = bench.url()
    measured, fitted = _sweep(url, bench.seconds(75.0, 24.0))
    hardware = Hardware(bench.gpu, 1, bench.options.price)
    profile = make_profile(measured, fitted, hardware, profile_name(bench.gpu), datetime.now(UTC).date())
    shipped = shipped_profile(bench.gpu)
    return {
        "fit": _figures(fitted),
        "shipped": {"name": shipped.name, **_errors(shipped.step, measured.samples)},
        "learned": _learned(url, measured.samples),
        "profile": profile.model_dump(mode="json", exclude_unset=True),
    }


def _sweep(url: str, duration_s: float) -> tuple[Measurement, Fit]:
    """Measure the only replica of the proof's model at `url`.

    Raises:
        MeasurementError: if there are several, or it reports no steps.
        FitError: if its steps do not determine the model.
    """
    measured = asyncio.run(measure(Plan(url, NAME, duration_s), lambda what, figures: None))
    return measured, fit(measured.samples)


def _figures(fitted: Fit) -> dict[str, Any]:
    """The coefficients with their standard errors, and how well they fit."""
    return {
        "coefficients": {name: plain(getattr(fitted.step, name)) for name in COEFFICIENTS},
        "standard_errors": {name: plain(getattr(fitted.standard_error, name)) for name in COEFFICIENTS},
        "median_relative_error": plain(fitted.median_relative_error),
        "p90_relative_error": plain(fitted.p90_relative_error),
        "samples": fitted.samples,
        "outliers": fitted.outliers,
    }


def _errors(step: StepTime, samples: Sequence[StepSample]) -> dict[str, Any]:
    """The relative errors of a model on measured steps, and the median of model / measured."""
    ratios = [
        (step.decode_s(one.batch, one.kv_tokens) + step.per_prefill_token_s * one.prefill_tokens) / one.step_s
        for one in samples
    ]
    return {
        "median_relative_error": plain(quantiles([abs(ratio - 1.0) for ratio in ratios], n=2)[0]),
        "median_ratio": plain(quantiles(ratios, n=2)[0]),
    }


def profile_name(gpu: str) -> str:
    """Return the name of the fleet file that the proof makes."""
    return "-".join(gpu.lower().replace("nvidia", "").split())


def shipped_profile(gpu: str) -> Profile:
    """Return the profile that Tideserve would take for this GPU."""
    accelerator = next((name for name in _ACCELERATORS if name in gpu), None)
    settings = ModelSettings(name=NAME, model="any/8b", accelerator_type=accelerator)
    return load_profile(profile_for(settings).profile.name)


def _learned(url: str, samples: Sequence[StepSample]) -> dict[str, Any] | None:
    """The model that the policy has learned from the same traffic; None if it reports none."""
    document = httpx.get(f"{url}/autoscaling/decisions?limit=1", timeout=30).json()
    found = _first_with(document, _LEARNED)
    if found is None:
        return None
    step = StepTime(*(float(found[name]) for name in _LEARNED))
    coefficients = {name: plain(getattr(step, name)) for name in COEFFICIENTS}
    return {"coefficients": coefficients, **_errors(step, samples)}


def _first_with(document: Any, names: Sequence[str]) -> Mapping[str, Any] | None:
    """The first object anywhere in `document` that has all of `names`."""
    if isinstance(document, Mapping):
        if all(document.get(name) is not None for name in names):
            return document
        document = list(document.values())
    if isinstance(document, list):
        return next((found for item in document if (found := _first_with(item, names))), None)
    return None


def quantization(bench: Bench) -> dict[str, Any]:
    """Measure the step time with each quantization that the device has and that needs no prepared weights."""
    found: dict[str, Any] = {name: _variant(bench, **more) for name, more in _quantizations(bench).items()}
    if bench.options.random_weights is None:
        found["left out"] = "awq, gptq and bitsandbytes, which need weights that were prepared for them"
    return found


def _quantizations(bench: Bench) -> dict[str, dict[str, Any]]:
    if not bench.on_gpu:
        return {"int8_per_channel_weight_only": {"quantization": "int8_per_channel_weight_only"}}
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
    counts = sorted({2, 1 << (gpus.bit_length() - 1)})
    return {str(ranks): _variant(bench, tensor_parallel_size=ranks) for ranks in counts}


def _variant(bench: Bench, **model: Any) -> dict[str, Any]:
    """The fit of a variant and its steps beside the plain model's; the reason where vLLM refuses it."""
    try:
        url = bench.url(**model)
    except CommandError as error:
        return {"refused": str(error)}
    _, fitted = _sweep(url, bench.seconds(20.0, 16.0))
    found, before = _figures(fitted), bench.figures("step-time")["fit"]["coefficients"]
    ratios = {name: value / before[name] for name, value in found["coefficients"].items() if before[name]}
    return {"fit": found, "ratios": plain(ratios), "first_token_s": first_token_s(url, _FIRST_TOKEN_S)}


def first_token_s(url: str, timeout_s: float) -> float:
    """Seconds from a request to its first token."""
    with httpx.Client(timeout=timeout_s, trust_env=False) as client:
        answer = ask(client, url, NAME, lambda: None)
    return float(plain(answer.token - answer.sent))
