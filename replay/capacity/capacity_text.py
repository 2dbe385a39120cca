"""A measurement as text: the step time, its error, and the capacity of a replica by it. Pure."""

from __future__ import annotations

from replay.capacity.server import ColdStart
from replay.fit import Fit
from replay.profile import Profile
from serve_app.policy.capacity_model import Mix, capacity_rps, feasibility
from serve_app.settings.knobs import Knobs

_MIXES = ((128, 128), (512, 128), (2048, 256), (8192, 256))
"""(prompt, output) tokens: short chat, the policy's first guess, long chat, documents."""


def report(profile: Profile, fitted: Fit, knobs: Knobs, max_model_len: int, cold: ColdStart | None) -> str:
    """Several lines, each ended."""
    lines = [*_law(fitted), "", *_capacity(profile, knobs, max_model_len), "", _start(cold)]
    return "\n".join(lines) + "\n"


def _law(fitted: Fit) -> list[str]:
    step, error = fitted.step, fitted.standard_error
    rows = (
        ("a step", step.base_s, error.base_s, 1e3, "ms"),
        ("a sequence", step.per_sequence_s, error.per_sequence_s, 1e3, "ms"),
        ("a KV token", step.per_kv_token_s, error.per_kv_token_s, 1e6, "us"),
        ("a prefill token", step.per_prefill_token_s, error.per_prefill_token_s, 1e6, "us"),
    )
    told = [
        f"  {what:16} {value * unit:10.4g} {name} +- {off * unit:.2g}"
        for what, value, off, unit, name in rows
    ]
    return [
        "Step time",
        *told,
        f"  error: {fitted.median_relative_error:.1%} median, {fitted.p90_relative_error:.1%} at the 90th "
        f"percentile, over {fitted.samples} means of a second's steps; {fitted.outliers} outliers left out",
    ]


def _capacity(profile: Profile, knobs: Knobs, max_model_len: int) -> list[str]:
    lines = [
        f"One replica carries, with P{knobs.ttft_percentile} TTFT within {knobs.ttft_target_s * 1e3:g} ms "
        f"and ITL within {knobs.itl_target_s * 1e3:g} ms"
    ]
    for prompt, output in _MIXES:
        if prompt + output > max_model_len:
            continue
        mix = Mix(prompt_tokens=float(prompt), output_tokens=float(output))
        rps = capacity_rps(profile.step, mix, knobs, float(profile.kv_cache_tokens))
        alone = feasibility(profile.step, mix, knobs)
        missed = [
            f"{name} of {seconds * 1e3:.3g} ms on an empty replica misses the target"
            for name, seconds, met in (("TTFT", alone.ttft_s, alone.ttft), ("ITL", alone.itl_s, alone.itl))
            if not met
        ]
        note = f"   ({'; '.join(missed)}, which is left out)" if missed else ""
        lines.append(f"  {rps:8.3g} requests/s of {prompt} + {output} tokens{note}")
    return lines


def _start(cold: ColdStart | None) -> str:
    if cold is None:
        return "Cold start: not measured yet by this application; the file has the defaults"
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in cold.phases_s.items())
    return f"Cold start: {cold.cold_start_s:.1f} s from process to readiness ({phases})"
