"""What is promised to users, and where panels turn from green to red."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.settings.knobs import Knobs
from tools.dashboards.colours import MISSED, OK, PLAIN, WARNING

_KNOBS = Knobs()

TTFT_S = _KNOBS.ttft_target_s
ITL_S = _KNOBS.itl_target_s
HUNDRED_TOKENS_S = 3.0
PROMISED_SHARE = _KNOBS.ttft_percentile / 100
"""The share of requests, and of gaps between tokens, that should be within the target."""
SUCCESS_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Step:
    """From `value` on, in a panel's unit, the colour is this; None is the colour below every other step."""

    value: float | None
    colour: str


NEUTRAL = (Step(None, PLAIN),)


def worse_above(warning: float, bad: float | None = None) -> tuple[Step, ...]:
    """Good below `warning`; bad from `bad` on, if there is such a point."""
    steps = (Step(None, OK), Step(warning, WARNING))
    return steps if bad is None else (*steps, Step(bad, MISSED))


def bad_above(bad: float) -> tuple[Step, ...]:
    """Good below `bad`."""
    return Step(None, OK), Step(bad, MISSED)


def better_above(good: float, tolerable: float) -> tuple[Step, ...]:
    """Good from `good` on, bad below `tolerable`."""
    return Step(None, MISSED), Step(tolerable, WARNING), Step(good, OK)


def line_at(target: float) -> tuple[Step, ...]:
    """A line across a graph."""
    return Step(None, "transparent"), Step(target, MISSED)
