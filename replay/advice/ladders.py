"""The values each knob is tried at. SLO targets are not among them: they are what is asked for."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from serve_app.settings.knobs import Knobs, overlay
from serve_app.settings.settings_error import SettingsError, shown

_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1000)

LADDERS: Mapping[str, Sequence[float | int | bool]] = {
    "max_replicas": _COUNTS[1:],
    "headroom": (0.0, 0.15, 0.3, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0),
    "forecast_quantile": (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0),
    "forecast_window_s": (300.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0, 5400.0, 7200.0, 10_800.0),
    "downscale_delay_s": (15.0, 30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 450.0, 600.0, 900.0),
    "downscale_to_zero_delay_s": (30.0, 60.0, 120.0, 180.0, 300.0, 450.0, 600.0, 900.0, 1800.0, 3600.0),
    "upscale_delay_s": (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    "queue_target_per_replica": (1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0),
    "min_replicas": _COUNTS,
    "forecast": (False, True),
}
"""In the order in which they are tried: first the bound on all others, then the knobs that move cost most."""

DEFAULT = tuple(name for name in LADDERS if name != "forecast")
"""The knobs that are searched by default. Without its forecast the policy only reacts."""


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The knobs to search, in the order in which they are tried.

    Raises:
        SettingsError: for a name that is not searched, or none at all.
    """
    problems = [
        f"knobs = {shown(name)}: must be of {', '.join(LADDERS)}" for name in names if name not in LADDERS
    ]
    if not names:
        problems.append(f"knobs: at least one is needed, of {', '.join(LADDERS)}")
    if problems:
        raise SettingsError(problems)
    return tuple(name for name in LADDERS if name in names)


def ladder(name: str, start: Knobs) -> tuple[Any, ...]:
    """The values of one knob, and that of `start` among them."""
    values = list(LADDERS[name])
    current = getattr(start, name)
    if current not in values:
        insort(values, current)
    return tuple(values)


def matters(name: str, knobs: Knobs) -> bool:
    """Whether the knob changes anything while the others stand as they do."""
    if name == "downscale_to_zero_delay_s":
        return knobs.min_replicas == 0
    if name in ("forecast_quantile", "forecast_window_s"):
        return knobs.forecast
    return True


def idle(name: str, old: Any, new: Any, peak: float) -> bool:
    """Whether a move changes nothing because it stays above the most replicas there were."""
    return name == "max_replicas" and min(old, new) > peak


def with_value(knobs: Knobs, name: str, value: Any) -> Knobs | None:
    """`knobs` with one of them changed; None where the knobs would contradict each other."""
    try:
        return overlay(knobs, {name: value})
    except ValidationError:
        return None


def changes(old: Knobs, new: Knobs) -> dict[str, Any]:
    """The knobs that differ, with their new values."""
    return {
        name: getattr(new, name) for name in Knobs.model_fields if getattr(new, name) != getattr(old, name)
    }
