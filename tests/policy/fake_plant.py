"""A fake fleet for closed loops: engines with a linear step time, an ingress that holds, cold starts.

Not a benchmark of the policy: arrivals are evenly spaced and nothing fails. What is real is the shape of
what is reported, and that capacity depends on batch, KV cache and prefill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from serve_app.learning.next_decision import next_decision
from serve_app.learning.state import PolicyState
from serve_app.policy.capacity_model import StepTime
from serve_app.policy.decide import Decision
from serve_app.policy.snapshot import Capacity, Snapshot
from serve_app.settings.knobs import Knobs
from serve_app.wire.signals import IngressSignals, Reading
from tests.policy.fake_engine import FakeEngine, Request

A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
BYTES_PER_TOKEN = 4.5
START = 1_700_000_000.0


@dataclass(slots=True)
class Tick:
    """What one second came to."""

    at: float
    """Seconds since the plant's start."""
    target: int
    wanted: int
    ready: int
    queued: int
    decision: Decision


class FakePlant:
    """Runs `decide` against the fake fleet, a second at a time.

    Args:
        knobs: Those of the one model.
        rate: Requests a second at a time since the start.
        prompt: Prompt tokens of a request; `output` those it generates.
        replicas: Ready at the start.
    """

    def __init__(
        self,
        knobs: Knobs,
        rate: Callable[[float], float],
        *,
        prompt: int = 1000,
        output: int = 128,
        step: StepTime = A100,
        cold_start_s: float = 60.0,
        replicas: int = 0,
        kv_cache_tokens: float = 200_000.0,
    ) -> None:
        self.knobs = knobs
        self.rate = rate
        self.prompt, self.output = prompt, output
        self.step, self.kv_cache_tokens = step, kv_cache_tokens
        self.cold_start_s = cold_start_s
        self.state = PolicyState()
        self.now = 0.0
        self.ticks: list[Tick] = []
        self.held: deque[Request] = deque()
        self.arrivals = 0
        self._due = 0.0
        self._started = 0
        self.engines: dict[str, FakeEngine] = {}
        for _ in range(replicas):
            self._start(0.0)

    @property
    def ready(self) -> dict[str, FakeEngine]:
        return {name: engine for name, engine in self.engines.items() if engine.ready_at <= self.now}

    def burst(self, requests: int) -> None:
        """So many requests at this moment."""
        for _ in range(requests):
            self._arrive(self.now)

    def run(self, seconds: float, each: Callable[[FakePlant], None] | None = None) -> list[Tick]:
        """Advance by `seconds`; `each` is called before every decision. Returns the ticks of it."""
        first = len(self.ticks)
        for _ in range(round(seconds)):
            self._second()
            if each is not None:
                each(self)
            self._decide()
        return self.ticks[first:]

    def _second(self) -> None:
        end = self.now + 1.0
        for engine in self.ready.values():
            engine.now = max(engine.now, self.now)
        while self.held and self.ready:
            self._least_busy().queue.append(self.held.popleft())
        self._due += self.rate(self.now)
        requests, self._due = int(self._due), self._due - int(self._due)
        for number in range(requests):
            self._arrive(self.now + (number + 0.5) / requests)
        for engine in self.ready.values():
            engine.advance(end)
        self.now = end

    def _arrive(self, at: float) -> None:
        self.arrivals += 1
        request = Request(at, self.prompt, self.output)
        (self._least_busy().queue if self.ready else self.held).append(request)

    def _least_busy(self) -> FakeEngine:
        return min(self.ready.values(), key=lambda engine: engine.open)

    def snapshot(self) -> Snapshot:
        """What the policy is shown."""
        ready = self.ready
        body = self.prompt * BYTES_PER_TOKEN
        ingress = IngressSignals(
            arrivals_total=float(self.arrivals),
            arrived_bytes_total=self.arrivals * body,
            held_requests=float(len(self.held)),
            held_bytes=len(self.held) * body,
            oldest_held_s=self.now - self.held[0].arrived if self.held else 0.0,
            newest_held_s=self.now - self.held[-1].arrived if self.held else 0.0,
        )
        return Snapshot(
            target=len(self.engines),
            ready=len(ready),
            engines={name: Reading(engine.report(self.now), 0.2) for name, engine in ready.items()},
            ingress={"ingress": Reading(ingress, 0.2)},
            capacity=Capacity(starting=len(self.engines) - len(ready)),
            cold_node_start_s=self.cold_start_s,
        )

    def _decide(self) -> None:
        snapshot = self.snapshot()
        decision, self.state = next_decision(snapshot, self.knobs, self.state, START + self.now)
        queued = len(self.held) + sum(
            sum(request.arrived <= self.now for request in engine.queue) for engine in self.ready.values()
        )
        self.ticks.append(Tick(self.now, decision.target, decision.wanted, snapshot.ready, queued, decision))
        while len(self.engines) < decision.target:
            self._start(self.cold_start_s)
        while len(self.engines) > decision.target:
            self._stop()

    def _start(self, takes_s: float) -> None:
        self._started += 1
        self.engines[f"r{self._started}"] = FakeEngine(self.now + takes_s, self.step, self.kv_cache_tokens)

    def _stop(self) -> None:
        """Stop a replica that is still starting, or the least busy one, which drains unseen."""
        starting = [name for name, engine in self.engines.items() if engine.ready_at > self.now]
        name = starting[-1] if starting else min(self.engines, key=lambda n: self.engines[n].open)
        stopped = self.engines.pop(name)
        for request in stopped.queue:
            (self._least_busy().queue if self.ready else self.held).append(request)


def changes(ticks: list[Tick]) -> list[tuple[float, int, int]]:
    """(seconds, from, to) of every change of the target."""
    return [
        (after.at, before.target, after.target)
        for before, after in pairwise(ticks)
        if before.target != after.target
    ]
