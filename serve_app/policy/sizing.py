"""How many replicas a rate needs, and what a rate so many replicas can carry."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from serve_app.policy.capacity_model import Mix, StepTime, itl_rps, ttft_rps
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs

MOST_REPLICAS = 1_000_000
_LARGEST_POOL = 64
"""Beyond so many replicas hardly a request waits any more."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a replica can carry of this model's requests, as the policy has learned it."""

    step: StepTime
    mix: Mix
    knobs: Knobs
    itl_rps: float
    """Requests a second at which a replica keeps its inter-token latencies; see `service.itl_rps`."""
    correction: float = 1.0
    """Of the capacity, by measured times to first token."""
    _by_pool: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Capacities computed before: a decision asks for the same few again and again."""

    def model_rps(self, replicas: int) -> float:
        """Requests a second of one replica among `replicas`, by the step-time model."""
        pool = min(max(replicas, 1), _LARGEST_POOL)
        known = self._by_pool.get(pool)
        if known is None:
            known = self._by_pool[pool] = ttft_rps(self.step, self.mix, self.knobs, self.itl_rps, pool)
        return known

    def rps(self, replicas: int) -> float:
        """The same, corrected by measured latencies."""
        return self.model_rps(replicas) * self.correction

    def replicas(self, rps: float, *, corrected: bool = True) -> int:
        """The fewest replicas for `rps` requests a second: the load, and headroom by its root."""
        if rps <= 0:
            return 0
        # A larger fleet carries more a replica: what one alone would take is enough, and what so many
        # would take if that were all of the fleet is the least.
        enough = self._called_for(rps, 1, corrected)
        least = self._called_for(rps, enough, corrected)
        while least < enough:
            middle = (least + enough) // 2
            if self._called_for(rps, middle, corrected) <= middle:
                enough = middle
            else:
                least = middle + 1
        return enough

    def _called_for(self, rps: float, fleet: int, corrected: bool) -> int:
        """Replicas for `rps` if each carries what one of `fleet` does."""
        capacity = self.model_rps(fleet) * (self.correction if corrected else 1.0)
        load = rps / max(capacity, 1e-9)
        return max(1, whole(load + self.knobs.headroom * math.sqrt(load)))

    def most_rps(self, replicas: int) -> float:
        """The inverse of `replicas`: what so many can carry."""
        headroom = self.knobs.headroom
        root = (-headroom + math.sqrt(headroom**2 + 4.0 * replicas)) / 2
        return root * root * self.rps(replicas)


def whole(replicas: float) -> int:
    """Rounded up, within reason. A hair below: 3.0000001 replicas of load are rounding, not load."""
    return math.ceil(min(max(replicas, 0.0), MOST_REPLICAS) - 1e-6)


def size(state: PolicyState, knobs: Knobs, step: StepTime, mix: Mix) -> Sizing:
    """The sizing that follows from what has been learned."""
    given = knobs.starting_values
    assumed = given.kv_cache_tokens or 0 if given is not None else 0
    most_rps = itl_rps(step, mix, knobs, state.kv_cache_tokens or assumed, state.interference)
    return Sizing(step, mix, knobs, most_rps, state.correction)
