"""Stage `step-time`: the law of an engine step, beside the shipped profile and what the policy learned."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import quantiles
from typing import Any

import httpx

from benchmarks.gpu_proof.bench import NAME, Bench, plain
from replay.capacity.fleet_file import Hardware, make_profile
from replay.capacity.measure import Measurement, Plan, measure
from replay.fit import COEFFICIENTS, Fit, StepSample, fit
from replay.profile import Profile, load_profile, profile_for
from serve_app.policy.capacity_model import StepTime
from serve_app.settings.tree import ModelSettings

_ACCELERATORS = ("H200", "H100", "A100", "L4")
_USUAL_S, _LEAST_S = 75.0, 24.0
_LEARNED = ("step_base_s", "step_per_sequence_s", "step_per_kv_token_s", "step_per_prefill_token_s")


def step_time(bench: Bench) -> dict[str, Any]:
    """Load one replica with prompts and batches of many sizes, and fit the law to its steps."""
    url = bench.url(bench.model())
    measured, fitted = sweep(url, bench.seconds(_USUAL_S, _LEAST_S))
    hardware = Hardware(gpu_name(bench), 1, bench.options.price)
    profile = make_profile(measured, fitted, hardware, profile_name(bench), datetime.now(UTC).date())
    shipped = shipped_profile(gpu_name(bench))
    return {
        "law": law(fitted),
        "samples": [
            plain([one.step_s, one.batch, one.kv_tokens, one.prefill_tokens]) for one in measured.samples
        ],
        "shipped": {"name": shipped.name, **errors(shipped.step, measured.samples)},
        "learned": _learned(url, measured.samples),
        "profile": profile.model_dump(mode="json", exclude_unset=True),
    }


def sweep(url: str, duration_s: float) -> tuple[Measurement, Fit]:
    """Measure the only replica of the proof's model at `url`, and fit the law.

    Raises:
        MeasurementError: if it is not alone, or reports no steps.
        FitError: if its steps do not tell the law.
    """
    measured = asyncio.run(measure(Plan(url, NAME, duration_s, 0), lambda what, figures: None))
    return measured, fit(measured.samples)


def law(fitted: Fit) -> dict[str, Any]:
    """Return the coefficients with their standard errors, and how well they fit."""
    return {
        "coefficients": {name: plain(getattr(fitted.step, name)) for name in COEFFICIENTS},
        "standard_errors": {name: plain(getattr(fitted.standard_error, name)) for name in COEFFICIENTS},
        "median_relative_error": plain(fitted.median_relative_error),
        "p90_relative_error": plain(fitted.p90_relative_error),
        "samples": fitted.samples,
        "outliers": fitted.outliers,
    }


def errors(step: StepTime, samples: Sequence[StepSample]) -> dict[str, Any]:
    """Return the relative errors of a law on measured steps, and the median of law / measured."""
    ratios = [
        (
            step.base_s
            + step.per_sequence_s * one.batch
            + step.per_kv_token_s * one.kv_tokens
            + step.per_prefill_token_s * one.prefill_tokens
        )
        / one.step_s
        for one in samples
    ]
    tenths = quantiles([abs(ratio - 1.0) for ratio in ratios], n=10)
    return {
        "median_relative_error": plain(tenths[4]),
        "p90_relative_error": plain(tenths[8]),
        "median_ratio": plain(quantiles(ratios, n=2)[0]),
    }


def gpu_name(bench: Bench) -> str:
    """Return the GPU's name as its driver has it; `CPU` in a rehearsal."""
    gpus = bench.machine["gpus"]
    return str(gpus[0]["name"]) if gpus else "CPU"


def profile_name(bench: Bench) -> str:
    """Return the name of the fleet file that the proof makes."""
    return "-".join(gpu_name(bench).lower().replace("nvidia", "").split())


def shipped_profile(gpu: str) -> Profile:
    """Return the profile that Tideserve would take for this GPU."""
    accelerator = next((name for name in _ACCELERATORS if name in gpu), None)
    settings = ModelSettings(name=NAME, model="any/8b", accelerator_type=accelerator)
    return load_profile(profile_for(settings).profile.name)


def _learned(url: str, samples: Sequence[StepSample]) -> dict[str, Any] | None:
    """What the policy has learned of the same traffic meanwhile; None if it says nothing of it."""
    document = httpx.get(f"{url}/autoscaling/decisions?limit=1", timeout=30).json()
    found = _first_with(document, _LEARNED)
    if found is None:
        return None
    step = StepTime(*(float(found[name]) for name in _LEARNED))
    return {
        "coefficients": {name: plain(getattr(step, name)) for name in COEFFICIENTS},
        **errors(step, samples),
    }


def _first_with(document: Any, names: Sequence[str]) -> Mapping[str, Any] | None:
    """The first object anywhere in `document` that has all of `names`."""
    if isinstance(document, Mapping):
        if all(document.get(name) is not None for name in names):
            return document
        document = list(document.values())
    if isinstance(document, list):
        return next((found for item in document if (found := _first_with(item, names))), None)
    return None
