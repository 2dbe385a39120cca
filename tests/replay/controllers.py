"""Controllers and traces for tests of the replay's driver."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from replay.fleet.fleet import Fleet
from replay.production import Production, Replica
from serve_app.settings.knobs import Knobs
from traces import ArrayTrace
from traces.trace import Chunk


class Scripted:
    """Asks for what a function of the time says."""

    name = "scripted"
    wanted: int | None = None
    errors = 0

    def __init__(self, plan: Callable[[float], int], interval_s: float = 1.0) -> None:
        self.plan = plan
        self.interval_s = interval_s
        self.asked: list[float] = []

    def step(self, fleet: Fleet) -> int:
        self.asked.append(fleet.now)
        return self.plan(fleet.now)

    def quiet_until(self, next_arrival: float) -> float:
        return 0.0

    def decisions(self) -> list[dict[str, Any]]:
        return []


class FaultyReports(Production):
    """Reports come 1 to 5 s late, and those of the first replica are lost from 200 s on."""

    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs)
        self._draw = np.random.default_rng(0)
        self._under_way: list[tuple[float, Replica, float, Sequence[float]]] = []
        self._newest: dict[Replica, float] = {}

    def quiet_until(self, next_arrival: float) -> float:
        return 0.0

    def step(self, fleet: Fleet) -> int:
        now, waiting = fleet.now, self._under_way
        self._under_way = [report for report in waiting if report[0] > now]
        running = {"ingress", *(f"r{fleet.names[slot]}" for slot in fleet.ready_slots)}
        for at, source, measured_at, values in waiting:
            # As in Ray's controller, a report that a newer one has overtaken is dropped.
            if at <= now and source.unique_id in running and measured_at >= self._newest.get(source, 0.0):
                self._newest[source] = measured_at
                super().report(source, measured_at, values)
        return super().step(fleet)

    def report(self, source: Replica, measured_at: float, values: Sequence[float]) -> None:
        if source.unique_id != "r1" or measured_at < 200.0:
            late_s = float(self._draw.uniform(1.0, 5.0))
            self._under_way.append((measured_at + late_s, source, measured_at, values))


class NoRequests:
    """A trace of nothing, which no file can be but a window of one."""

    name = "nothing"
    block_tokens = 0

    def chunks(self) -> Iterator[Chunk]:
        return iter(())

    def progress(self) -> float:
        return 1.0


def trace(*requests: tuple[float, int, int]) -> ArrayTrace:
    """Requests as (arrival, prompt tokens, answer tokens)."""
    return ArrayTrace("made up", *zip(*requests, strict=True))


def steady(rps: float, duration_s: float, prompt: int = 300, output: int = 30, seed: int = 0) -> ArrayTrace:
    """Poisson arrivals of requests that are all alike."""
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1.0 / rps, int(2 * rps * duration_s + 50)))
    arrivals = arrivals[arrivals < duration_s]
    return ArrayTrace("steady", arrivals, np.full(len(arrivals), prompt), np.full(len(arrivals), output))


def waves(phases: Sequence[tuple[float, float]], seed: int = 0) -> ArrayTrace:
    """Poisson arrivals at so many requests a second for so many seconds, one phase after the other."""
    draw = np.random.default_rng(seed)
    start, arrivals = 0.0, []
    for rps, seconds in phases:
        arrivals.append(start + np.sort(draw.uniform(0, seconds, draw.poisson(rps * seconds))))
        start += seconds
    at = np.concatenate(arrivals)
    return ArrayTrace("waves", at, draw.integers(50, 1500, len(at)), draw.integers(1, 200, len(at)))
