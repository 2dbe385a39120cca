"""Numbers that JSON has words for: it has neither NaN nor infinity, and strict parsers refuse both."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def short(value: float, digits: int = 6) -> float | int | None:
    """Return `value` with this many significant digits, an int where it is whole, None where not finite."""
    value = float(value)
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{digits}g}")


def fixed(value: float | None, places: int) -> float | None:
    """Return `value` with this many decimal places, so that sums add up; None where it is not finite."""
    return round(float(value), places) if value is not None and math.isfinite(value) else None


def series(values: npt.NDArray[np.float64], digits: int = 4) -> list[float | int | None]:
    """Return an array for drawing: four digits are more than a pixel shows."""
    return [short(value, digits) for value in values.tolist()]


def finite(value: Any) -> Any:
    """Return plain data with None for each number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
