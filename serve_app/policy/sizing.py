"""How many replicas a rate needs, and which rate a number of replicas can serve."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from serve_app.policy.capacity_model import Mix, StepTime, itl_rps, ttft_rps
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs

MOST_REPLICAS = 1_000_000
_LARGEST_POOL = 64
"""In a larger fleet hardly any request waits."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a replica can serve of this model's requests, as the policy has learned it."""

    step: StepTime
    mix: Mix
    knobs: Knobs
    itl_rps: float
    """Requests per second at which a replica keeps its ITL target; see `capacity_model.itl_rps`."""
    correction: float = 1.0
    """The factor on the capacity that follows from measured times to first token."""
    _by_pool: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Capacities computed before: one decision needs the same few many times."""

    def model_rps(self, replicas: int) -> float:
        """Return the requests per second of one replica among `replicas`, by the step-time model."""
        pool = min(max(replicas, 1), _LARGEST_POOL)
        known = self._by_pool.get(pool)
        if known is None:
            known = self._by_pool[pool] = ttft_rps(self.step, self.mix, self.knobs, self.itl_rps, pool)
        return known

    def rps(self, replicas: int) -> float:
        """Return the same, corrected by measured latencies."""
        return self.model_rps(replicas) * self.correction

    def replicas(self, rps: float, *, corrected: bool = True) -> int:
        """Return the fewest replicas for `rps` requests per second: the load, and headroom by its root."""
        if rps <= 0:
            return 0
        # Each replica of a larger fleet serves more. So the number by what one alone serves is enough, and
        # the number by what each of that fleet serves is the least.
        enough = self._needed(rps, 1, corrected)
        least = self._needed(rps, enough, corrected)
        while least < enough:
            middle = (least + enough) // 2
            if self._needed(rps, middle, corrected) <= middle:
                enough = middle
            else:
                least = middle + 1
        return enough

    def _needed(self, rps: float, fleet: int, corrected: bool) -> int:
        """Return the replicas for `rps` if each serves as much as one of `fleet`."""
        capacity = self.model_rps(fleet) * (self.correction if corrected else 1.0)
        load = rps / max(capacity, 1e-9)
        return max(1, round_up(load + self.knobs.headroom * math.sqrt(load)))

    def most_rps(self, replicas: int) -> float:
        """Return the requests per second that `replicas` can serve: the inverse of `self.replicas`."""
        headroom = self.knobs.headroom
        root = (-headroom + math.sqrt(headroom**2 + 4.0 * replicas)) / 2
        return root * root * self.rps(replicas)


def round_up(replicas: float) -> int:
    """Return `replicas` rounded up, within bounds; 3.0000001 is a rounding error and gives 3."""
    return math.ceil(min(max(replicas, 0.0), MOST_REPLICAS) - 1e-6)


def size(state: PolicyState, knobs: Knobs, step: StepTime, mix: Mix) -> Sizing:
    """Return the sizing that follows from what has been learned."""
    given = knobs.starting_values
    assumed = given.kv_cache_tokens or 0 if given is not None else 0
    most_rps = itl_rps(step, mix, knobs, state.kv_cache_tokens or assumed, state.interference)
    return Sizing(step, mix, knobs, most_rps, state.correction)
