"""Numbers and names as reports show them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_DIGITS = 6
_LONGEST_NAME = 60


def short(value: float, digits: int = _DIGITS) -> float | int | None:
    """`value` with so many significant digits, whole numbers as such; None where it is not finite.

    JSON has neither NaN nor infinity, and strict parsers refuse a document that has them.
    """
    value = float(value)
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{digits}g}")


def fixed(value: float, places: int) -> float | None:
    """`value` with so many decimal places; None where it is not finite. For sums, so that they add up."""
    return round(float(value), places) if math.isfinite(value) else None


def series(values: npt.NDArray[np.float64], digits: int = 4) -> list[float | int | None]:
    """An array for drawing: four digits are more than a pixel shows."""
    return [short(value, digits) for value in values.tolist()]


def seconds(value: float, digits: int = 3) -> str:
    """A latency or a span in the unit it is read in: `182 ms`, `1.25 s`, `180 s`, `12 min`, `2.5 h`.

    Seconds up to ten minutes, because bounds of cold starts are set, and compared, in seconds.
    """
    if not math.isfinite(value):
        return "-"
    if abs(value) < 0.9995:
        return f"{1000 * value:.{digits}g} ms"
    if abs(value) < 600:
        return f"{value:.{digits}g} s"
    return f"{value / 60:.{digits}g} min" if abs(value) < 7200 else f"{value / 3600:.{digits}g} h"


def count(number: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(share: float) -> str:
    """`99.4 %`; not rounded up to 100 % while anything is missing."""
    if not math.isfinite(share):
        return "-"
    shown = 100 * share
    if 99.95 <= shown < 100:
        return f"{math.floor(shown * 100) / 100:.2f} %"
    return f"{shown:.1f} %" if shown < 100 else "100 %"


def whole(value: float) -> str:
    """`48,213`."""
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def ratio(value: float | None) -> str:
    """`1.22x`."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.2f}x"


def dollars(value: float | None) -> str:
    """`$41.20`; `-` where no price is known."""
    return "-" if not value or not math.isfinite(value) else f"${value:,.2f}"


def plain(name: str, longest: int = _LONGEST_NAME) -> str:
    """A name from outside on one line, without what would steer a terminal, and not too long."""
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
