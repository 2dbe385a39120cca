"""The profile of a measurement, and the file that holds it."""

import math
from dataclasses import dataclass
from datetime import date
from typing import Any

import yaml
from pydantic import ValidationError

from replay.capacity.measure import Measurement
from replay.capacity.server import ColdStart, MeasurementError
from replay.fit import Fit
from replay.profile import Knee, Profile, starting_values
from serve_app import __version__
from serve_app.settings.settings_error import from_pydantic

_AROUND_S = (2.0, 4.0)
"""Ray's part of a cold start, which is measured from the process to readiness: a second or two to start the
process, and as long again to put a ready replica into service."""
_DIGITS = 4
_LEFT_OUT = frozenset(
    (
        "cold_start_s",
        "warm_node_start_s",
        "warm_nodes",
        "cold_start_phases",
        "knee",
        "adapter_load_s",
        "max_cached_adapters",
    )
)
"""Fields that are left out of the file if they were not measured; the reader has defaults."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Facts about the hardware that the measurement cannot find."""

    gpu: str
    gpus: int
    price_per_gpu_hour: float
    max_num_seqs: int | None = None
    """None: as the server reports."""


def make_profile(measured: Measurement, fitted: Fit, hardware: Hardware, name: str, day: date) -> Profile:
    """The profile of a measurement and its fit.

    Raises MeasurementError for figures that no profile can have.
    """
    limits = measured.limits
    document: dict[str, Any] = {
        "name": name,
        "source": _source(measured, fitted, day),
        "gpu": hardware.gpu,
        "gpus": hardware.gpus,
        "price_per_gpu_hour": hardware.price_per_gpu_hour,
        "step_base_s": _round(fitted.step.base_s),
        "step_per_sequence_s": _round(fitted.step.per_sequence_s),
        "step_per_kv_token_s": _round(fitted.step.per_kv_token_s),
        "step_per_prefill_token_s": _round(fitted.step.per_prefill_token_s),
        "fit_error": _round(fitted.median_relative_error),
        "kv_cache_tokens": limits.kv_cache_tokens,
        "max_num_seqs": hardware.max_num_seqs or limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
    }
    if measured.cold_start is not None:
        document |= _cold_start(measured.cold_start)
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        raise MeasurementError(
            f"no profile can be made: {'; '.join(from_pydantic(error).problems)}"
        ) from None


def with_knee(profile: Profile, found: Knee, asked: tuple[int, int]) -> Profile:
    """The profile with its knee; its source says if the (prompt, output) tokens asked for were cut."""
    got = (found.prompt_tokens, found.output_tokens)
    cut = f", cut from {asked[0]} + {asked[1]} to what fits" if got != asked else ""
    source = f"Knee: {len(found.curve)} rates of Poisson arrivals, {got[0]} + {got[1]} tokens{cut}."
    return profile.model_copy(update={"knee": found, "source": f"{profile.source} {source}"})


def starting_values_block(model: str, profile: Profile) -> str:
    """The YAML for `user_config` of the ingress, so that the policy starts from the measured values.

    Raises MeasurementError for values out of the knob's bounds.
    """
    try:
        values = starting_values(profile)
    except ValidationError as error:
        raise MeasurementError(
            f"the policy cannot begin with these: {'; '.join(from_pydantic(error).problems)}"
        ) from None
    block = {"autoscaling": {model: {"starting_values": values}}}
    return yaml.safe_dump(block, sort_keys=False, default_flow_style=None, width=110)


def write_profile(profile: Profile) -> str:
    """The text of a fleet file, which `load_profile` reads, without the fields that were not measured."""
    unknown = _LEFT_OUT - profile.model_fields_set
    document = profile.model_dump(mode="json", exclude=set(unknown))
    return yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)


def _source(measured: Measurement, fitted: Fit, day: date) -> str:
    cold = measured.cold_start
    start = (
        f"cold start: median of its last starts, {cold.longest_s:.1f} s from process to readiness, "
        f"and {_AROUND_S[0]:g} to {_AROUND_S[1]:g} s for Ray's part"
        if cold is not None
        else "cold start: not measured, the defaults"
    )
    return (
        f"Measured by tideserve capacity {__version__} on {day.isoformat()}: model {measured.model}, one "
        f"replica, {measured.requests} requests under {measured.loads} loads, {fitted.samples} means of a "
        f"second's steps; error of the fit {fitted.median_relative_error:.1%} median and "
        f"{fitted.p90_relative_error:.1%} at the 90th percentile; {start}."
    )


def _cold_start(known: ColdStart) -> dict[str, Any]:
    """The fields of a cold start: on a cold node if one was measured, otherwise on a warm node."""
    fields: dict[str, Any] = {"cold_start_s": [round(known.longest_s + part, 1) for part in _AROUND_S]}
    if known.warm_node_start_s and known.cold_node_start_s:
        fields["warm_node_start_s"] = [round(known.warm_node_start_s + part, 1) for part in _AROUND_S]
    phases_s = known.longest_phases_s
    total = sum(phases_s.values())
    if total > 0:
        fields["cold_start_phases"] = {
            phase: round(seconds / total, _DIGITS) for phase, seconds in phases_s.items()
        }
    return fields


def _round(value: float) -> float:
    """`value` to four significant digits."""
    return 0.0 if value == 0 else round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))
