"""Numbers drawn from the distributions of a scenario."""

import math

import numpy as np

from loadtests.distributions import Between, Geometric, Length, LogNormal, Think, Turns


def draw_length(law: Length, draws: np.random.Generator) -> int:
    """A number of tokens."""
    if isinstance(law, Between):
        return int(draws.integers(law.least, law.most + 1))
    if isinstance(law, LogNormal):
        return round(_spread(law.median, law.sigma, law.least, law.most, draws))
    return law


def draw_pause_s(law: Think, draws: np.random.Generator) -> float:
    """A pause, seconds."""
    if isinstance(law, Between):
        return float(draws.uniform(law.least, law.most))
    if isinstance(law, LogNormal):
        return _spread(law.median, law.sigma, law.least, law.most, draws)
    return law


def draw_turns(law: Turns, draws: np.random.Generator) -> int:
    """A number of turns."""
    if isinstance(law, Between):
        return int(draws.integers(law.least, law.most + 1))
    if isinstance(law, Geometric):
        return min(int(draws.geometric(1 / law.mean)), law.most)
    return law


def _spread(median: float, sigma: float, least: float, most: float, draws: np.random.Generator) -> float:
    return min(max(median * math.exp(sigma * draws.standard_normal()), least), most)
