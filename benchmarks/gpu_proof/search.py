"""The largest rate at which something still holds, by a few tries."""

import math
from collections.abc import Callable

_STEP = 2.0


def largest_rate(holds: Callable[[float], bool], first: float, tries: int) -> float | None:
    """Return the largest rate tried at which `holds` is true; None if it never is.

    It begins with `first`, doubles or halves until a rate that holds and one that does not are known, and
    then tries the geometric mean of the two.
    """
    held, missed = 0.0, math.inf
    rate = first
    for _ in range(tries):
        if holds(rate):
            held = rate
        else:
            missed = rate
        if held == 0.0:
            rate = missed / _STEP
        elif missed == math.inf:
            rate = held * _STEP
        else:
            rate = math.sqrt(held * missed)
    return held or None
