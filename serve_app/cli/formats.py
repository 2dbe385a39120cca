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
    """Round to `digits` significant digits, or to an int if it is whole; None if it is not finite.

    JSON has neither NaN nor infinity, and strict parsers refuse a document that contains them.
    """
    value = float(value)
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{digits}g}")


def fixed(value: float, places: int) -> float | None:
    """Round to `places` decimal places, so that sums add up; None if it is not finite."""
    return round(float(value), places) if math.isfinite(value) else None


def series(values: npt.NDArray[np.float64], digits: int = 4) -> list[float | int | None]:
    """An array as a list for drawing; four digits are more than a pixel can show."""
    return [short(value, digits) for value in values.tolist()]


def seconds(value: float, digits: int = 3) -> str:
    """A duration in a readable unit: `182 ms`, `1.25 s`, `180 s`, `12 min`, `2.5 h`.

    Seconds are used up to ten minutes, because the bounds of cold starts are set in seconds.
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
    """`99.4 %`; less than 1 is never rounded up to 100 %."""
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
    """A name from outside on one line, without control characters and cut to `longest` characters."""
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
