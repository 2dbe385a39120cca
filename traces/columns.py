"""The columns of a trace: their names, their bounds, and their values as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traces.files import Lines
from traces.trace import Floats, shown


@dataclass(frozen=True, slots=True)
class Key:
    """One column of a trace, with the bounds of its values."""

    name: str
    least: float
    most: float
    whole: bool = True

    def column(self, lines: Lines, values: Sequence[object] | Floats) -> Floats:
        """The `values` of `lines`, numbers or their text, as an array.

        Raises LineError for the first value that is not a number within the bounds.
        """
        column = _floats(values)
        wrong = ~((column >= self.least) & (column <= self.most))  # true for NaN
        if self.whole:
            wrong |= column != np.floor(column)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise lines.error(at, f"{self.name} = {shown(values[at])}: {self._fault(values[at])}")
        return column

    def _fault(self, given: object) -> str:
        value = _float(given)
        if value is None:
            return "not a number"
        if not self.least <= value <= self.most:
            return f"must be from {self.least:.12g} to {self.most:.12g}"
        return "must be a whole number"


def _floats(values: Sequence[object] | Floats) -> Floats:
    """NaN where a value is not a number."""
    if isinstance(values, np.ndarray):
        return values
    kinds = set(map(type, values))
    try:
        if kinds <= {int, float} or (kinds == {str} and "_" not in "".join(values)):  # type: ignore[arg-type]
            return np.fromiter(map(float, values), np.float64, len(values))  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        pass
    return np.array([_float(value) for value in values], dtype=np.float64)


def _float(given: object) -> float | None:
    """A number, or the text of one. Python's float() would also take `True` and `1_0`."""
    if isinstance(given, bool) or not isinstance(given, int | float | str) or "_" in str(given):
        return None
    try:
        return float(given)
    except ValueError:
        return None
    except OverflowError:
        return np.inf
