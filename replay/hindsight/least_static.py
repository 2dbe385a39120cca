"""The least static fleet that attains the goal, found with hindsight."""

from bisect import bisect_left
from collections.abc import Callable

from replay.controller import Sampled
from replay.defaults import GOAL
from replay.laws.static import Static
from replay.result import Result
from replay.scenario import Scenario


def least_static(scenario: Scenario, progress: Callable[[float], None] | None = None) -> Result:
    """The least fixed number of replicas that attains `GOAL`, by bisection between the bounds.

    All of them are ready at the start. Where not even the most replicas attain it, the least number that
    attains as much as those do.
    """
    least, most = max(scenario.bounds[0], 1), scenario.bounds[1]
    turns = (most - least).bit_length() + 1
    results: dict[int, Result] = {}

    def share(part: float) -> None:
        if progress is not None:
            progress(min((len(results) + part) / turns, 1.0))

    def attained(replicas: int) -> float:
        results[replicas] = static(scenario, replicas, share)
        return results[replicas].attainment

    goal = min(GOAL, attained(most))
    found = least + bisect_left(range(least, most), goal, key=attained)
    if progress is not None:
        progress(1.0)
    return results[found]


def static(scenario: Scenario, replicas: int, progress: Callable[[float], None] | None = None) -> Result:
    """A fixed number of replicas, ready at the start unless the scenario says how many are."""
    warm = min(replicas, scenario.conditions.capacity or replicas)
    if scenario.initial is not None:
        warm = scenario.warm()
    return scenario.run(Sampled(Static(replicas)), warm=warm, progress=progress)
