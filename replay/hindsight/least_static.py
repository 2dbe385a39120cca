"""The static fleet that one would have had to provision, found with hindsight."""

from __future__ import annotations

from collections.abc import Callable

from replay.controller import Sampled
from replay.laws.static import Static
from replay.result import Result
from replay.scenario import Scenario

GOAL = 0.99
"""Attainment to reach."""


def least_static(scenario: Scenario, progress: Callable[[float], None] | None = None) -> Result:
    """The least fixed number of replicas that attains `GOAL`, by bisection between the bounds.

    All of them are ready at the start. Where not even the most replicas attain it, the least number that
    attains as much as those do.
    """
    least, most = max(scenario.bounds[0], 1), scenario.bounds[1]
    turns = (most - least).bit_length() + 1
    done = 0

    def share(part: float) -> None:
        if progress is not None:
            progress(min((done + part) / turns, 1.0))

    def with_replicas(replicas: int) -> Result:
        nonlocal done
        result = static(scenario, replicas, share)
        done += 1
        return result

    best = with_replicas(most)
    goal = min(GOAL, best.attainment)
    high = most
    while least < high:
        middle = (least + high) // 2
        result = with_replicas(middle)
        if result.attainment >= goal:
            best, high = result, middle
        else:
            least = middle + 1
    if progress is not None:
        progress(1.0)
    return best


def static(scenario: Scenario, replicas: int, progress: Callable[[float], None] | None = None) -> Result:
    """A fixed number of replicas, ready at the start unless the scenario says how many are."""
    warm = min(replicas, scenario.conditions.capacity or replicas)
    if scenario.initial is not None:
        warm = scenario.warm()
    return scenario.run(Sampled(Static(replicas)), warm=warm, progress=progress)
