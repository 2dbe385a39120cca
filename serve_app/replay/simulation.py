"""The replay's driver: a trace, a fleet and a policy, second by second, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from serve_app.replay.fleet.fleet import Conditions, Fleet
from serve_app.replay.measure import measure
from serve_app.replay.profile import Profile
from serve_app.replay.result import Result
from serve_app.replay.sample import Autoscaler, Sample
from serve_app.replay.series import Series
from serve_app.replay.trace import Chunk, Trace

_TICK_S = 0.5
"""While replicas drain, and after the last arrival: how long their ends may go unnoticed."""
_LAP_S = 10.0
"""Between two looks at how far the replay is."""
_PROGRESS_S = 0.2
_LONGEST_TAIL_S = 3600.0
"""After the last arrival; who has not been answered by then never will be."""


class Controller(Protocol):
    """What decides in a replay, with the whole fleet to look at."""

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

    @property
    def wanted(self) -> int | None:
        """What the policy would ask for, were it not held back; None where it tells no such thing."""
        ...

    @property
    def errors(self) -> int:
        """Decisions that raised, which is what has kept their target."""
        ...

    def decisions(self) -> list[dict[str, Any]]:
        """Its decision records."""
        ...


class Sampled:
    """A baseline policy as a controller: it is shown a sample of the fleet."""

    wanted: int | None = None
    errors = 0
    """What it raises ends the replay."""

    def __init__(self, autoscaler: Autoscaler) -> None:
        self._autoscaler = autoscaler
        self.name = autoscaler.name
        self.interval_s = autoscaler.interval_s

    def step(self, fleet: Fleet) -> int:
        """Ask it."""
        return self._autoscaler.decide(sample(fleet))

    def decisions(self) -> list[dict[str, Any]]:
        """It keeps none."""
        return []


def sample(fleet: Fleet) -> Sample:
    """What metrics of the fleet show now."""
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


def simulate(
    trace: Trace,
    controller: Controller,
    profile: Profile,
    conditions: Conditions,
    *,
    bounds: tuple[int, int] = (0, 32),
    initial: int = 0,
    percentile: float = 95.0,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Run `controller` against a simulated fleet under the requests of `trace`.

    Args:
        trace: The requests; read once.
        controller: What decides.
        profile: What one replica is.
        conditions: What the fleet runs under.
        bounds: Least and most replicas, to which what the controller asks for is clipped.
        initial: Replicas ready at the start.
        percentile: Of TTFT and ITL, for the targets.
        progress: Told the share of the trace that is done, now and then.

    Raises:
        TraceError: for a line of the trace that is no request.
    """
    began = time.perf_counter()
    fleet = Fleet(profile, conditions, expected_replicas=bounds[1])
    fleet.warm(min(max(initial, bounds[0]), bounds[1]))
    series = Series()
    changes = 0
    next_step = 0.0
    said_at = began
    last_arrival = 0.0

    def run(until: float) -> None:
        """From now to `until`, the fleet's events and the controller's steps in their order."""
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
            if fleet.now >= series.next_at:
                series.note(fleet, controller.wanted)

    chunks = trace.chunks()
    chunk: Chunk | None = next(chunks, None)
    at = 0

    def feed(to: float) -> None:
        """Arrivals and steps up to `to`."""
        nonlocal chunk, at, last_arrival
        while chunk is not None:
            at = fleet.take(chunk, at, to)
            if at < len(chunk):
                break
            last_arrival = float(chunk.arrival_s[-1])
            chunk, at = next(chunks, None), 0
        fleet.advance(to)

    while chunk is not None:
        run(fleet.now + _LAP_S)
        now = time.perf_counter()
        if progress is not None and now - said_at >= _PROGRESS_S:
            said_at = now
            progress(trace.progress())
    run(last_arrival + _LONGEST_TAIL_S)
    fleet.end()
    if progress is not None:
        progress(1.0)
    return measure(
        fleet,
        series,
        controller,
        trace=trace.name,
        duration_s=last_arrival,
        percentile=percentile,
        changes=changes,
        wall_s=time.perf_counter() - began,
    )
