"""Small traces whose right answer is plain."""

import numpy as np

from traces import ArrayTrace


def steady(rate: float = 1.0, duration_s: float = 300.0, name: str = "steady") -> ArrayTrace:
    """Evenly spaced requests of 400 prompt and 20 output tokens, of which an A100 carries 8 a second."""
    return of(np.arange(0.0, duration_s, 1.0 / rate), name)


def two_bursts(gap_s: float, rate: float = 10.0) -> ArrayTrace:
    """Half a minute of traffic, silence, and half a minute again."""
    burst = np.arange(0.0, 30.0, 1.0 / rate)
    return of(np.concatenate([burst, 30.0 + gap_s + burst]), "two bursts")


def of(arrival_s: np.ndarray[tuple[int], np.dtype[np.float64]], name: str) -> ArrayTrace:
    """Requests of one kind at these times."""
    return ArrayTrace(name, arrival_s, np.full(len(arrival_s), 400), np.full(len(arrival_s), 20))
