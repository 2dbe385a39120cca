"""The report of a measurement: the step time, the capacity, and the knee with a bar for each latency."""

import math
from collections.abc import Sequence

from replay.capacity.knee import Rate
from replay.capacity.server import ColdStart
from replay.fit import Fit
from replay.profile import Knee, Profile
from serve_app.cli import formats
from serve_app.policy.capacity_model import Mix, capacity_rps, feasibility
from serve_app.settings.knobs import Knobs

_MIXES = ((128, 128), (512, 128), (2048, 256), (8192, 256))
"""(prompt, output) tokens: short chat, the policy's first guess, long chat, documents."""


def report(profile: Profile, fitted: Fit, knobs: Knobs, max_model_len: int, cold: ColdStart | None) -> str:
    """The step time, the capacity by the formula, and the cold start."""
    lines = [*_step_time(fitted), "", *_capacity(profile, knobs, max_model_len), "", _start(cold)]
    return "\n".join(lines) + "\n"


def _step_time(fitted: Fit) -> list[str]:
    step, error = fitted.step, fitted.standard_error
    rows = (
        ("a step", step.base_s, error.base_s, 1e3, "ms"),
        ("a sequence", step.per_sequence_s, error.per_sequence_s, 1e3, "ms"),
        ("a KV token", step.per_kv_token_s, error.per_kv_token_s, 1e6, "us"),
        ("a prefill token", step.per_prefill_token_s, error.per_prefill_token_s, 1e6, "us"),
    )
    coefficients = [
        f"  {load:16} {value * unit:10.4g} {name} +- {off * unit:.2g}"
        for load, value, off, unit, name in rows
    ]
    return [
        "Step time",
        *coefficients,
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
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in cold.longest_phases_s.items())
    return f"Cold start: {cold.longest_s:.1f} s from process to readiness ({phases})"


_BAR = 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_NEAR = 0.05
"""The precision of the knee: smaller differences mean nothing."""


def knee_report(found: Knee, rates: Sequence[Rate]) -> str:
    """The rates of the curve, one line each, and the verdict."""
    lines = [
        f"Open loop: Poisson arrivals of {found.prompt_tokens} + {found.output_tokens} tokens, with "
        f"{_targets(found)}",
        f"  {'requests/s':>11}  {'requests':>8}  {f'P{found.percentile} TTFT':<{_BAR + 10}}"
        f"  {f'P{found.percentile} ITL':<{_BAR + 10}}  {'in time':>7}  missed",
        *(_line(rate, found) for rate in rates),
        "",
        *_verdict(found, rates),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _targets(found: Knee) -> str:
    """The targets, and the one that is left out."""
    both = (("TTFT", found.ttft_target_s), ("ITL", found.itl_target_s))
    kept = [f"{name} within {formats.seconds(target)}" for name, target in both if target is not None]
    text = f"P{found.percentile} {' and '.join(kept)}"
    left_out = [name for name, target in both if target is None]
    return f"{text} ({left_out[0]} left out: an empty replica misses its target)" if left_out else text


def _line(rate: Rate, found: Knee) -> str:
    mark = ">" if rate.passed and math.isclose(rate.rps, found.rps, rel_tol=1e-3) else " "
    return (
        f"{mark} {rate.rps:>11.3g}  {rate.requests:>8}  {_latency(rate.ttft_s, found.ttft_target_s)}"
        f"  {_latency(rate.itl_s, found.itl_target_s)}  {formats.percent(rate.attained):>7}  {_miss(rate)}"
    )


def _miss(rate: Rate) -> str:
    return f"client, {formats.seconds(rate.lag_s)} late" if rate.miss == "client" else rate.miss


def _latency(seconds: float, target_s: float | None) -> str:
    value = formats.seconds(seconds) if math.isfinite(seconds) else "never"
    return f"{value:>8} {bar(seconds / target_s) if target_s is not None else '':<{_BAR + 1}}"


def bar(share: float) -> str:
    """A bar that is full at 1, and ends in `>` above it."""
    if share > 1.0:
        return "█" * _BAR + ">"
    eighths = math.floor(share * _BAR * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _verdict(found: Knee, rates: Sequence[Rate]) -> list[str]:
    formula = f"the formula says {found.formula_rps:.3g}"
    if not found.rps:
        return [
            f"No rate met the targets, down to {rates[0].rps:.3g} requests/s, and {formula}; the lowest "
            f"missed {_what(rates[0].miss)}"
        ]
    off = found.formula_rps / found.rps - 1.0
    how = "the same to 5 %" if abs(off) <= _NEAR else f"{abs(off):.0%} too {'many' if off > 0 else 'few'}"
    lines = [f"One replica carries {found.rps:.3g} requests/s, measured; {formula}, {how}"]
    if found.bound == "client":
        lines.append(
            "The client could not keep time above that: it bounds the knee, not the replica. "
            "Run it on a machine of its own"
        )
    elif found.bound == "none":
        lines.append("No rate was missed; the knee lies higher")
    else:
        lines.append(f"Above it {_what(found.bound)} is missed first")
    return lines


def _what(miss: str) -> str:
    return {"queue": "the rate itself (the queue grows)", "client": "the client's own time"}.get(miss, miss)
