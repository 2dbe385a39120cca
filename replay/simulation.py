"""The driver of a replay: moves a trace, a fleet and a controller through time, and returns the result."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from replay.fleet.conditions import Conditions
from replay.fleet.fleet import Fleet
from replay.policies import Autoscaler, Sample
from replay.profile import Profile
from replay.result import Result, Series, measure
from traces.backlog import Backlog
from traces.trace import Chunk, Trace

_TICK_S = 0.5
"""The longest step while replicas drain and after the last arrival, to notice their ends."""
_LAP_S = 10.0
"""The longest step of the trace between two reports of progress."""
_PROGRESS_S = 0.2
_LONGEST_TAIL_S = 3600.0
"""How long a replay goes on after the last arrival; later first tokens do not come."""


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
        """The time until which no `step` changes anything if nothing arrives; 0 if unknown."""
        ...

    @property
    def wanted(self) -> int | None:
        """Replicas the policy would ask for without delays and limits; None if it does not say."""
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
    """The fleet as its metrics show it now, without the lane `background`."""
    memory = fleet.memory
    totals = memory.totals[0]
    slots = fleet.ready_slots
    replicas = memory.replicas[slots]
    return Sample(
        at=fleet.now,
        target=fleet.target,
        ready=len(slots),
        held=int(totals["held"]),
        running=(replicas["batch_size"] - replicas["background_batch"]).astype(np.float64),
        waiting=(replicas["waiting"] - replicas["background"] + replicas["background_batch"]).astype(
            np.float64
        ),
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


def simulate(
    trace: Trace,
    controller: Controller,
    profile: Profile,
    conditions: Conditions,
    *,
    bounds: tuple[int, int] = (0, 32),
    initial: int = 0,
    percentile: float = 95.0,
    backlog: Backlog | None = None,
    progress: Callable[[float], None] | None = None,
    fleet: Fleet | None = None,
) -> Result:
    """Run `controller` against a simulated fleet under the requests of `trace`, which has `backlog` in it.

    `fleet` replaces a new fleet of `profile` in `conditions`.

    Raises TraceError for a line of the trace that is no request.
    """
    began = time.perf_counter()
    fleet = fleet or Fleet(profile, conditions, expected_replicas=bounds[1])
    fleet.warm(min(max(initial, bounds[0]), bounds[1]))
    series = Series()
    changes = 0
    next_step = 0.0
    said_at = began
    last_arrival = 0.0

    def run(until: float) -> None:
        """Take the fleet's events and the controller's steps up to `until`, in their order."""
        nonlocal changes, next_step
        while fleet.now < until and (chunk is not None or fleet.open_requests):
            to = min(until, max(next_step, fleet.now), fleet.next_event(), series.next_at)
            if chunk is None or fleet.draining:
                to = min(to, fleet.now + _TICK_S)
            if to > fleet.now:
                feed(to)
            fleet.settle()
            if fleet.now >= next_step:
                next_step += controller.interval_s
                target = min(max(controller.step(fleet), bounds[0]), bounds[1])
                if target != fleet.target:
                    fleet.set_target(target)
                    changes += 1
                if chunk is not None and not fleet.open_requests:
                    next_step = max(next_step, controller.quiet_until(float(chunk.arrival_s[at])))
            if fleet.now >= series.next_at:
                series.note(fleet, controller.wanted)

    chunks = trace.chunks()
    chunk: Chunk | None = next(chunks, None)
    at = 0

    def feed(to: float) -> None:
        """Take the arrivals and engine steps up to `to`."""
        nonlocal chunk, at, last_arrival
        while chunk is not None:
            at = fleet.take(chunk, at, to)
            if at < len(chunk):
                break
            last_arrival = float(chunk.arrival_s[-1])
            chunk, at = next(chunks, None), 0
        fleet.advance(to)

    while chunk is not None:
        run(max(fleet.now, next_step) + _LAP_S)
        now = time.perf_counter()
        if progress is not None and now - said_at >= _PROGRESS_S:
            said_at = now
            progress(trace.progress())
    deadlines = [] if backlog is None else backlog.times(last_arrival)
    run(max([last_arrival + _LONGEST_TAIL_S, *(due for _, due in deadlines)]))
    fleet.end()
    if progress is not None:
        progress(1.0)
    return measure(
        fleet,
        series,
        percentile,
        last_arrival,
        backlog,
        policy=controller.name,
        trace=trace.name,
        changes=changes,
        decisions=controller.decisions(),
        policy_errors=controller.errors,
        wall_s=time.perf_counter() - began,
    )
