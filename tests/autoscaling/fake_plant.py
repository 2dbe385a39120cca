"""A fake fleet for closed loops: engines with a linear step time, an ingress that holds, cold starts.

Not a benchmark of the policy: arrivals are evenly spaced and nothing fails. What is real is the shape of
what is reported, and that capacity depends on batch, KV cache and prefill as in `service.py`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from serve_app.autoscaling.knobs import PERCENTILES, Knobs
from serve_app.autoscaling.policy import Decision, decide
from serve_app.autoscaling.service import StepTime
from serve_app.autoscaling.signals import Capacity, EngineSignals, IngressSignals, Reading, Snapshot
from serve_app.autoscaling.state import PolicyState

A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
CHUNK = 8192
"""Prompt tokens prefilled in one step, at most."""
MAX_NUM_SEQS = 64
BYTES_PER_TOKEN = 4.5
START = 1_700_000_000.0


class Percentiles:
    """Weighted observations of the last 30 s."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, float]] = deque()

    def add(self, at: float, value: float, weight: float = 1.0) -> None:
        self._seen.append((at, value, weight))

    def read(self, now: float) -> tuple[float, dict[int, float]]:
        """How many, and the value at each percentile that replicas report."""
        while self._seen and self._seen[0][0] <= now - 30.0:
            self._seen.popleft()
        ordered = sorted((value, weight) for _, value, weight in self._seen)
        total = sum(weight for _, weight in ordered)
        found = dict.fromkeys(PERCENTILES, 0.0)
        below = 0.0
        wanted = list(PERCENTILES)
        for value, weight in ordered:
            below += weight
            while wanted and below >= wanted[0] / 100.0 * total:
                found[wanted.pop(0)] = value
        return total, found


@dataclass(slots=True)
class Request:
    arrived: float
    prompt: int
    output: int


@dataclass(slots=True)
class Engine:
    """One replica: continuous batching with chunked prefill, fast-forwarded between events."""

    ready_at: float
    step: StepTime
    kv_cache_tokens: float
    now: float = 0.0
    queue: deque[Request] = field(default_factory=deque)
    running: list[tuple[int, int]] = field(default_factory=list)
    """(number of the step that ends it, prompt tokens), as a heap."""
    count: int = 0
    """Steps taken."""
    kv_tokens: int = 0
    ttft_queue: Percentiles = field(default_factory=Percentiles)
    ttft_prefill: Percentiles = field(default_factory=Percentiles)
    itl: Percentiles = field(default_factory=Percentiles)
    sums: list[float] = field(default_factory=lambda: [0.0] * 5)
    """Of the steps since the last report: number, seconds, batch, prefill tokens, KV tokens."""
    prefilled: float = 0.0
    generated: float = 0.0
    finished: float = 0.0
    finished_prompt: float = 0.0
    finished_output: float = 0.0
    outputs: dict[int, int] = field(default_factory=dict)

    @property
    def open(self) -> int:
        return len(self.queue) + len(self.running)

    def advance(self, until: float) -> None:
        """Take the steps that begin before `until`."""
        self.now = max(self.now, self.ready_at)
        while self.now < until:
            if self.queue and self.queue[0].arrived <= self.now and len(self.running) < MAX_NUM_SEQS:
                self._prefill()
            elif self.running:
                self._decode(until)
            elif self.queue:
                self.now = max(self.now, self.queue[0].arrived)
            else:
                return

    def _prefill(self) -> None:
        admitted: list[Request] = []
        tokens = 0
        while self.queue and self.queue[0].arrived <= self.now:
            if len(self.running) + len(admitted) >= MAX_NUM_SEQS:
                break
            if admitted and tokens + self.queue[0].prompt > CHUNK:
                break
            tokens += self.queue[0].prompt
            admitted.append(self.queue.popleft())
        took = self.step.decode_s(len(self.running), self.kv_tokens) + self.step.per_prefill_token_s * tokens
        start = self.now
        self._steps(1, took, tokens)
        for request in admitted:
            self.ttft_queue.add(self.now, start - request.arrived)
            self.ttft_prefill.add(self.now, took)
            heapq.heappush(self.running, (self.count + request.output - 1, request.prompt))
            self.kv_tokens += request.prompt
            self.generated += 1
            self.outputs[request.prompt] = request.output
        self.prefilled += tokens
        self._finish()

    def _decode(self, until: float) -> None:
        took = self.step.decode_s(len(self.running), self.kv_tokens)
        horizon = until
        if self.queue and len(self.running) < MAX_NUM_SEQS:
            horizon = min(until, self.queue[0].arrived)
        steps = max(1, math.ceil((horizon - self.now) / took))
        self._steps(min(steps, self.running[0][0] - self.count), took, 0)
        self._finish()

    def _steps(self, steps: int, took: float, prefill_tokens: int) -> None:
        batch = len(self.running)
        for index, value in enumerate((1.0, took, batch, prefill_tokens, self.kv_tokens)):
            self.sums[index] += steps * value
        self.now += steps * took
        self.count += steps
        self.kv_tokens += steps * batch
        self.generated += steps * batch
        if batch:
            self.itl.add(self.now, took, steps * batch)

    def _finish(self) -> None:
        while self.running and self.running[0][0] <= self.count:
            _, prompt = heapq.heappop(self.running)
            output = self.outputs[prompt]
            self.kv_tokens -= prompt + output - 1
            self.finished += 1
            self.finished_prompt += prompt
            self.finished_output += output

    def report(self, now: float) -> EngineSignals:
        """What a replica says once a second."""
        steps, *sums = self.sums
        self.sums = [0.0] * 5
        means = [value / steps if steps else 0.0 for value in sums]
        values: dict[str, float] = {
            "running_requests": len(self.running),
            "waiting_requests": len(self.queue),
            "running_tokens": self.kv_tokens,
            "waiting_tokens": sum(request.prompt for request in self.queue),
            "oldest_waiting_s": max(0.0, now - self.queue[0].arrived) if self.queue else 0.0,
            "ongoing_requests": self.open,
            "kv_cache_usage_ratio": self.kv_tokens / self.kv_cache_tokens,
            "kv_cache_tokens": self.kv_cache_tokens,
            "prompt_tokens_total": self.prefilled,
            "generation_tokens_total": self.generated,
            "finished_requests_total": self.finished,
            "finished_prompt_tokens_total": self.finished_prompt,
            "finished_generation_tokens_total": self.finished_output,
            "steps": steps,
            "step_s": means[0],
            "step_batch": means[1],
            "step_prefill_tokens": means[2],
            "step_kv_tokens": means[3],
        }
        for part, count, window in (
            ("ttft_queue", "ttft_count", self.ttft_queue),
            ("ttft_prefill", "ttft_count", self.ttft_prefill),
            ("itl", "itl_count", self.itl),
        ):
            values[count], percentiles = window.read(now)
            values.update({f"{part}_p{p}_s": value for p, value in percentiles.items()})
        return EngineSignals(**values)


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
        self.engines: dict[str, Engine] = {}
        for _ in range(replicas):
            self._start(0.0)

    @property
    def ready(self) -> dict[str, Engine]:
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
            while self.held:
                # What was held goes to the first that is up; the others share what follows.
                request = self.held.popleft()
                min(self.ready.values(), key=lambda e: e.open).queue.append(request)
            engine.now = max(engine.now, self.now)
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
        ready = self.ready
        if ready:
            min(ready.values(), key=lambda engine: engine.open).queue.append(request)
        else:
            self.held.append(request)

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
        )
        return Snapshot(
            target=len(self.engines),
            ready=len(ready),
            engines={name: Reading(engine.report(self.now), 0.2) for name, engine in ready.items()},
            ingress={"ingress": Reading(ingress, 0.2)},
            capacity=Capacity(starting=len(self.engines) - len(ready)),
            cold_start_s=self.cold_start_s,
        )

    def _decide(self) -> None:
        snapshot = self.snapshot()
        decision = decide(snapshot, self.knobs, self.state, START + self.now)
        self.state = decision.state
        queued = len(self.held) + sum(
            sum(request.arrived <= self.now for request in engine.queue) for engine in self.ready.values()
        )
        self.ticks.append(
            Tick(self.now, decision.target, decision.wanted, snapshot.ready, queued, decision)
        )
        while len(self.engines) < decision.target:
            self._start(self.cold_start_s)
        while len(self.engines) > decision.target:
            self._stop()

    def _start(self, takes_s: float) -> None:
        self._started += 1
        self.engines[f"r{self._started}"] = Engine(self.now + takes_s, self.step, self.kv_cache_tokens)

    def _stop(self) -> None:
        """Stop a replica that is still starting, or the least busy one, which drains unseen."""
        starting = [name for name, engine in self.engines.items() if engine.ready_at > self.now]
        name = starting[-1] if starting else min(self.engines, key=lambda n: self.engines[n].open)
        stopped = self.engines.pop(name)
        if self.ready:
            for request in stopped.queue:
                min(self.ready.values(), key=lambda engine: engine.open).queue.append(request)


def changes(ticks: list[Tick]) -> list[tuple[float, int, int]]:
    """(seconds, from, to) of every change of the target."""
    return [
        (after.at, before.target, after.target)
        for before, after in zip(ticks, ticks[1:], strict=False)
        if before.target != after.target
    ]
