"""Axes of latencies for pictures. Imports matplotlib."""

import math
from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from loadtests.drawing.palette import LIGHT
from loadtests.drawing.pictures import Floats

_MOST_TICKS = 7
_REACH = 3.0
"""Times the largest value, or a third of the smallest: bounds farther off are named at the edge."""


def latency_axis(panel: Axes, values: Floats, bounds: Iterable[float] = ()) -> float:
    """Make the y axis logarithmic, for `values` and the `bounds` near them, in seconds; return where to draw
    answers that never came.

    NaN is no value. Infinities stand for answers that never came, and get a lane on top.
    """
    low, high = limits(values, bounds)
    panel.set_yscale("log")
    never = bool(np.isinf(values).any())
    tenth = (high / low) ** 0.1  # of the axis
    panel.set_ylim(low, high * tenth**1.6 if never else high)
    ticks = round_ticks(low, high)
    at = high * tenth**0.8
    if never:
        panel.axhspan(high * tenth**0.2, high * tenth**1.6, color=LIGHT["missed"], alpha=0.15, linewidth=0)
        ticks = [*(tick for tick in ticks if tick <= high / tenth**0.3), at]
    label_axis(panel.yaxis, ticks, at)
    return float(at)


def label_axis(axis: Axis, ticks: list[float], never_at: float = math.inf) -> None:
    """Label ticks in words: `20 ms`, `5 s`, and `never` at `never_at`."""
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: "never" if math.isclose(value, never_at) else words(value))
    )


def words(value: float) -> str:
    """Return a round latency in words: `20 ms`, `5 s`."""
    return f"{value:.4g} s" if value >= 0.9995 else f"{1000 * value:.4g} ms"


def limits(values: Floats, bounds: Iterable[float] = ()) -> tuple[float, float]:
    """Return round ends of a logarithmic axis, at least two thirds of a decade apart.

    It has room for `values` and for the `bounds` near them: one that had to reach a bound of two minutes
    would leave a line to answers of 20 ms.
    """
    finite = values[np.isfinite(values) & (values > 0)]
    least, most = (finite.min() / _REACH, finite.max() * _REACH) if len(finite) else (0.0, math.inf)
    finite = np.append(finite, [bound for bound in bounds if least <= bound <= most])
    if not len(finite):
        return 0.01, 1.0
    low, high = float(finite.min()) * 0.85, float(finite.max()) * 1.1
    low = max(step for step in _rounds(low) if step <= low * 1.0001)
    high = min(step for step in _rounds(high) if step >= high * 0.9999)
    return low, max(high, low * 5)


def round_ticks(low: float, high: float, most: int = _MOST_TICKS) -> list[float]:
    """Return 1, 2 and 5 times powers of ten, or the powers alone where those are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for shares in ((1, 2, 5), (1,)):
        ticks = [
            share * 10.0**power
            for power in powers
            for share in shares
            if low * 0.999 <= share * 10.0**power <= high * 1.001
        ]
        if len(ticks) <= most:
            break
    return ticks


def _rounds(value: float) -> list[float]:
    power = math.floor(math.log10(value))
    return [share * 10.0**each for each in (power - 1, power, power + 1) for share in (1, 2, 5)]
