"""The controller of a replay: its protocol, and baseline policies behind it."""

from typing import Any, Protocol

import numpy as np

from replay.fleet.fleet import Fleet
from replay.sample import Autoscaler, Sample


class Controller(Protocol):
    """Decides in a replay; it may look at the whole fleet."""

    @property
    def name(self) -> str:
        """For reports."""
        ...

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `step`."""
        ...

    def step(self, fleet: Fleet) -> int:
        """Replicas to ask for now."""
        ...

    def quiet_until(self, next_arrival: float) -> float:
        """The time until which no `step` changes anything if nothing arrives; 0 where it is unknown."""
        ...

    @property
    def wanted(self) -> int | None:
        """The replicas the policy would ask for without delays and limits; None where it does not say."""
        ...

    @property
    def errors(self) -> int:
        """The number of decisions that raised; each kept the target."""
        ...

    def decisions(self) -> list[dict[str, Any]]:
        """Its decision records."""
        ...


class Sampled:
    """A baseline policy as a controller, which sees a sample of the fleet."""

    wanted: int | None = None
    errors = 0
    """An exception of a baseline ends the replay."""

    def __init__(self, autoscaler: Autoscaler) -> None:
        self._autoscaler = autoscaler
        self.name = autoscaler.name
        self.interval_s = autoscaler.interval_s

    def step(self, fleet: Fleet) -> int:
        """Ask the policy for its target."""
        return self._autoscaler.decide(sample(fleet))

    def quiet_until(self, next_arrival: float) -> float:
        """Unknown: a baseline keeps its own history of every sample."""
        return 0.0

    def decisions(self) -> list[dict[str, Any]]:
        """None: baselines keep no records."""
        return []


def sample(fleet: Fleet) -> Sample:
    """The fleet as its metrics show it now."""
    memory = fleet.memory
    totals = memory.totals[0]
    slots = fleet.ready_slots
    replicas = memory.replicas[slots]
    return Sample(
        at=fleet.now,
        target=fleet.target,
        ready=len(slots),
        held=int(totals["held"]),
        running=replicas["batch_size"].astype(np.float64),
        waiting=replicas["waiting"].astype(np.float64),
        kv_usage=replicas["kv_used"] / float(memory.rules["kv_cache_tokens"][0]),
        kv_cache_tokens=float(memory.rules["kv_cache_tokens"][0]),
        arrivals=float(totals["arrivals"]),
        arrived_tokens=float(totals["arrived_tokens"]),
        first_tokens=float(totals["first_tokens"]),
        ttft_sum_s=float(totals["ttft_sum"]),
        finished=float(totals["finished"]),
        finished_prompt_tokens=float(totals["finished_prompt"]),
        finished_output_tokens=float(totals["finished_output"]),
        itl_count=float(totals["itl_count"]),
        itl_sum_s=float(totals["itl_sum"]),
        replicas=np.array([fleet.names[slot] for slot in slots], dtype=np.int64),
    )
