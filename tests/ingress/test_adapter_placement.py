"""The pick of replicas for adapters, on simulated engines with an explicit clock.

Three replicas with 16 places each get Zipf traffic to 200 adapters beside traffic to the model itself.
"""

import heapq
import random
from bisect import bisect
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Any

import pytest

from serve_app.ingress.replica import Replica
from serve_app.ingress.replica_set import ReplicaSet
from tests.ingress.test_replica_set import where

ADAPTERS, PLACES, REPLICAS = 200, 16, ("a", "b", "c")
TOKENS_PER_S, PROMPT_TOKENS, DECODE_S, BEAT_S = 10_000.0, 200, 0.5, 0.5
SECONDS, WARM_UP_S = 400.0, 100.0


class Uses:
    """The rule of `engine.adapters`: the adapter with the fewest of the latest uses goes."""

    def __init__(self) -> None:
        self._latest = deque[str](maxlen=100 * PLACES)
        self._counts = Counter[str]()

    def note(self, name: str) -> None:
        if len(self._latest) == self._latest.maxlen:
            self._counts[self._latest[0]] -= 1
        self._latest.append(name)
        self._counts[name] += 1

    def of(self, name: str) -> float:
        return self._counts[name]


@dataclass
class SimulatedEngine:
    """Loads adapters and prefills prompts one after another."""

    load_s: float
    uses: Uses = field(default_factory=Uses)
    free_at: float = 0.0
    loaded: dict[str, None] = field(default_factory=dict)
    """A dict, because the order of a set of words differs from process to process."""
    calls: dict[str, int] = field(default_factory=dict)

    def begin(self, now: float, adapter: str) -> tuple[float, bool]:
        """Return when the first token comes, and whether the adapter was loaded."""
        found = not adapter or adapter in self.loaded
        if adapter:
            self.uses.note(adapter)
            self.calls[adapter] = self.calls.get(adapter, 0) + 1
            self.loaded[adapter] = None
            idle = [name for name in self.loaded if not self.calls.get(name)]
            if len(self.loaded) > PLACES and idle:
                del self.loaded[min(idle, key=self.uses.of)]
        work_s = PROMPT_TOKENS / TOKENS_PER_S + (0.0 if found else self.load_s)
        self.free_at = max(now, self.free_at) + work_s
        return self.free_at, found

    def end(self, adapter: str) -> None:
        if adapter:
            self.calls[adapter] -= 1


@dataclass
class Figures:
    found: int = 0
    missing: int = 0
    base_ttft_s: list[float] = field(default_factory=list)
    holders: dict[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return self.found / (self.found + self.missing)

    @property
    def base_p95_s(self) -> float:
        return sorted(self.base_ttft_s)[int(0.95 * len(self.base_ttft_s))]


def names_by_popularity(exponent: float) -> tuple[list[str], list[float]]:
    weights = [1.0 / rank**exponent for rank in range(1, ADAPTERS + 1)]
    return [f"adapter-{rank}" for rank in range(ADAPTERS)], weights


def perfect_share(exponent: float) -> float:
    """The share of requests for the adapters that fit, if the most popular ones stay loaded."""
    weights = names_by_popularity(exponent)[1]
    return sum(weights[: PLACES * len(REPLICAS)]) / sum(weights)


def serve(
    *, adapters: bool = True, load_s: float = 0.02, rate: float = 30.0, exponent: float = 1.0
) -> Figures:
    """Send requests, every second one for an adapter if `adapters`, and return what was measured."""
    rng = random.Random(7)
    names, weights = names_by_popularity(exponent)
    up_to = list(accumulate(weights))
    now, numbers, figures = 0.0, count(), Figures()
    among = ReplicaSet(clock=lambda: now)
    among.update(where(*REPLICAS))
    engines = {name: SimulatedEngine(load_s) for name in REPLICAS}
    replicas: dict[str, Replica] = {one.replica_id: one for one in among.listed()}
    events: list[tuple[float, int, str, Any]] = [(0.0, next(numbers), "arrival", None)]
    events.append((BEAT_S, next(numbers), "beat", None))
    while events:
        now, _, what, slot = heapq.heappop(events)
        if what == "arrival":
            chosen = names[bisect(up_to, rng.random() * up_to[-1])]
            adapter = chosen if rng.random() < 0.5 else ""
            asked = adapter if adapters else ""
            slot = among.take(1000, PROMPT_TOKENS, 0.16, adapter=asked)
            assert slot is not None
            first, found = engines[slot.replica.replica_id].begin(now, asked)
            heapq.heappush(events, (first, next(numbers), "first", slot))
            heapq.heappush(events, (first + DECODE_S, next(numbers), "end", slot))
            if now > WARM_UP_S:
                if not adapter:
                    figures.base_ttft_s.append(first - now)
                elif found:
                    figures.found += 1
                else:
                    figures.missing += 1
            if now < SECONDS:
                heapq.heappush(events, (now + rng.expovariate(rate), next(numbers), "arrival", None))
        elif what == "first":
            among.note_first_byte(slot)
        elif what == "end":
            engines[slot.replica.replica_id].end(slot.adapter)
            among.release(slot)
        elif now < SECONDS:
            for name, engine in engines.items():
                replicas[name].adapters = set(engine.loaded)
                replicas[name].adapter_load_s = load_s
            heapq.heappush(events, (now + BEAT_S, next(numbers), "beat", None))
    figures.holders = {name: sum(name in engine.loaded for engine in engines.values()) for name in names}
    return figures


@pytest.mark.parametrize("load_s", [0.02, 0.1])
@pytest.mark.parametrize("exponent", [1.0, 1.2])
def test_most_requests_find_their_adapter_loaded(exponent: float, load_s: float) -> None:
    figures = serve(exponent=exponent, load_s=load_s)

    assert figures.share >= 0.9 * perfect_share(exponent)


@pytest.mark.parametrize("load_s", [0.02, 0.1])
def test_adapters_leave_the_ttft_of_the_model_itself(load_s: float) -> None:
    assert serve(load_s=load_s).base_p95_s <= 1.1 * serve(adapters=False).base_p95_s


def test_hot_adapters_spread_and_cold_ones_stay() -> None:
    holders = serve(exponent=1.2).holders

    assert holders["adapter-0"] > 1
    assert max(holders[f"adapter-{rank}"] for rank in range(20, ADAPTERS)) == 1
