"""The driver of a replay: moves a trace, a fleet and a policy through time, and returns the result."""

import time
from collections.abc import Callable

from replay.controller import Controller
from replay.figures import Series, measure
from replay.fleet.fleet import Conditions, Fleet
from replay.profile import Profile
from replay.result import Result
from traces.trace import Chunk, Trace

_TICK_S = 0.5
"""The longest step while replicas drain and after the last arrival, so that their ends are noticed."""
_LAP_S = 10.0
"""The longest step of the trace between two reports of progress."""
_PROGRESS_S = 0.2
_LONGEST_TAIL_S = 3600.0
"""How long a replay goes on after the last arrival; later first tokens do not come."""


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

    Raises TraceError for a line of the trace that is no request.
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
