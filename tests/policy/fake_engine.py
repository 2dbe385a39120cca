"""A fake engine replica: continuous batching with a linear step time, reported as the real one reports.

Its model is step = base + per sequence + per KV token + per prefill token, as in `service.py`; between
arrivals and ends nothing changes, so it jumps from one to the next.
"""

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass, field

from serve_app.policy.capacity_model import StepTime
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES
from serve_app.wire.signals import EngineSignals

CHUNK = 8192
"""Prompt tokens prefilled in one step, at most."""
MAX_NUM_SEQS = 64


class Percentiles:
    """Weighted observations of the last 30 s, to a tenth of a millisecond."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[float]]] = deque()
        self._seen: Counter[float] = Counter()

    def add(self, at: float, value: float, weight: int = 1) -> None:
        if not self._seconds or self._seconds[-1][0] != int(at):
            self._seconds.append((int(at), Counter()))
        value = round(value, 4)
        self._seconds[-1][1][value] += weight
        self._seen[value] += weight

    def read(self, now: float, percentiles: tuple[int, ...]) -> tuple[float, dict[int, float]]:
        """How many, and the value at each of `percentiles`."""
        while self._seconds and self._seconds[0][0] < now - 30.0:
            for value, weight in self._seconds.popleft()[1].items():
                self._seen[value] -= weight
                if not self._seen[value]:
                    del self._seen[value]
        total = sum(self._seen.values())
        found = dict.fromkeys(percentiles, 0.0)
        below = 0.0
        wanted = list(percentiles)
        for value in sorted(self._seen):
            below += self._seen[value]
            while wanted and below >= wanted[0] / 100.0 * total:
                found[wanted.pop(0)] = value
        return total, found


@dataclass(slots=True)
class Request:
    arrived: float
    prompt: int
    output: int


@dataclass(slots=True)
class FakeEngine:
    """One replica: continuous batching with chunked prefill, fast-forwarded between events."""

    ready_at: float
    step: StepTime
    kv_cache_tokens: float
    now: float = 0.0
    queue: deque[Request] = field(default_factory=deque)
    running: list[tuple[int, int, int]] = field(default_factory=list)
    """(number of the step that ends it, prompt tokens, output tokens), as a heap."""
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
            heapq.heappush(self.running, (self.count + request.output - 1, request.prompt, request.output))
            self.kv_tokens += request.prompt
            self.generated += 1
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
            _, prompt, output = heapq.heappop(self.running)
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
            "ongoing_requests": self.open,
            "kv_cache_usage_ratio": self.kv_tokens / self.kv_cache_tokens,
            "kv_cache_tokens": self.kv_cache_tokens,
            "prompt_tokens_total": self.prefilled,
            "finished_requests_total": self.finished,
            "finished_prompt_tokens_total": self.finished_prompt,
            "finished_generation_tokens_total": self.finished_output,
            "steps": steps,
            "step_s": means[0],
            "step_batch": means[1],
            "step_prefill_tokens": means[2],
            "step_kv_tokens": means[3],
        }
        for part, count, window, percentiles in (
            ("ttft_queue", "ttft_count", self.ttft_queue, PERCENTILES),
            ("ttft_prefill", "ttft_count", self.ttft_prefill, PERCENTILES),
            ("itl", "itl_count", self.itl, ITL_PERCENTILES),
        ):
            values[count], found = window.read(now, percentiles)
            values.update({f"{part}_p{p}_s": value for p, value in found.items()})
        return EngineSignals(**values)
