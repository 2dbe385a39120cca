"""Picks of fleets that are too large to look at every replica: their work, and their quality."""

import gc
import heapq
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from types import FrameType
from typing import Any

import pytest

from serve_app.api.prompt_prefix import BLOCK_BYTES, PromptPrefix
from serve_app.ingress import candidates
from serve_app.ingress.replica import Replica, Reservation
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.wire.signals import BYTES_PER_TOKEN

FEW, MANY = 100, 1000
PICKS = 64
TOKENS_PER_S = 20_000.0
BUDGET_S = 0.4
BATCH, LIMIT = 32, 64
REPLICAS, REQUESTS = 160, 5_000
KINDS = 40


def fleet(replicas: int, clock: Callable[[], float] = lambda: 0.0) -> ReplicaSet:
    known = ReplicaSet(clock=clock)
    known.update({f"r{n}": {"address": "", "token": "", "identity": ""} for n in range(replicas)})
    for replica in known.listed():
        known.prefixes.resize(replica.replica_id, 400_000)
    return known


def prompt(*blocks: int) -> PromptPrefix:
    return PromptPrefix(len(blocks) * BLOCK_BYTES, blocks, 0)


def operations(work: Callable[[], Any]) -> int:
    """Return the bytecode instructions of our own code while `work` runs."""
    counted = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        if "/serve_app/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted


@pytest.mark.parametrize("shared", [(), (1, 2)])
@pytest.mark.parametrize("adapter", ["", "pirate"])
def test_work_of_a_pick_does_not_grow_with_replicas(shared: tuple[int, ...], adapter: str) -> None:
    def picks(known: ReplicaSet) -> None:
        for number in range(PICKS):
            slot = known.take(LIMIT, 300, BUDGET_S, BATCH, prompt(*shared, 1000 + number), adapter=adapter)
            assert slot is not None
            known.note_first_byte(slot)
            known.release(slot)

    spent = []
    for replicas in (FEW, MANY):
        known = fleet(replicas)
        for replica in known.listed():
            known.prefixes.add(replica.replica_id, prompt(*shared, 9))
            known.note_adapters(replica, ["pirate"])
        spent.append(operations(lambda known=known: picks(known)))

    assert 0 < spent[1] <= 1.1 * spent[0]


def test_a_free_replica_is_found_in_a_full_fleet() -> None:
    known = fleet(MANY)
    slots = [known.take(1) for _ in range(MANY)]
    assert known.take(1) is None

    freed = slots[MANY // 2]
    assert freed is not None
    known.release(freed)

    again = known.take(1)
    assert again is not None
    assert again.replica is freed.replica


@pytest.mark.parametrize("budget_s", [0.0, BUDGET_S])
def test_the_only_reachable_replica_is_found_in_a_large_fleet(budget_s: float) -> None:
    known = fleet(MANY)
    replicas = [*known.listed()]
    for each in replicas:
        each.failures = each is not replicas[MANY // 2]

    slot = known.take(LIMIT, 300, budget_s, BATCH)

    assert slot is not None
    assert slot.replica is replicas[MANY // 2]


def test_replicas_that_are_gone_are_not_kept_for_their_adapters() -> None:
    known = ReplicaSet()
    for number in range(10):
        name = f"gone-{number}"
        known.update({name: {"address": name, "token": "", "identity": ""}})
        for replica in known.listed():
            known.note_adapters(replica, ["pirate"])
    del replica
    known.update({})

    gc.collect()
    assert [one for one in gc.get_objects() if type(one) is Replica and one.address.startswith("gone-")] == []


def test_a_replica_that_comes_back_is_found_by_its_adapter_again() -> None:
    known = fleet(MANY)
    every = {one.replica_id: {"address": "", "token": "", "identity": ""} for one in known.listed()}
    holder = [*known.listed()][MANY // 2]
    known.note_adapters(holder, ["pirate"])
    open_request = known.take(LIMIT, adapter="pirate")

    known.update({name: each for name, each in every.items() if name != holder.replica_id})
    known.update(every)
    known.note_adapters(holder, ["pirate"])

    slot = known.take(LIMIT, 300, BUDGET_S, BATCH, adapter="pirate")
    assert open_request is not None
    assert slot is not None
    assert slot.replica is open_request.replica is holder


def test_a_prefix_is_found_wherever_it_is() -> None:
    known = fleet(MANY)
    holder = f"r{MANY // 2}"
    known.prefixes.add(holder, prompt(1, 2, 3))

    slot = known.take(LIMIT, 300, BUDGET_S, BATCH, prompt(1, 2, 3, 4))

    assert slot is not None
    assert slot.replica.replica_id == holder


def test_a_replica_that_may_not_be_picked_is_never_a_candidate() -> None:
    known = fleet(FEW)
    lost = [*known.listed()][:8]
    for replica in lost:
        known.keep_away(replica, "its node is gone")

    picked = {slot.replica for slot in (known.take(LIMIT) for _ in range(10 * FEW)) if slot is not None}
    assert len(picked) == FEW - len(lost)
    assert not picked & set(lost)


@dataclass(slots=True)
class Engine:
    """Prefills all waiting prompts in one step. A step delays the engine's running streams."""

    waiting: list[tuple[Reservation, float, float]] = field(default_factory=list)
    """Reservation, arrival and seconds of decoding."""
    step: list[tuple[Reservation, float, float]] = field(default_factory=list)
    ends: dict[int, float] = field(default_factory=dict)


class SimulatedFleet:
    """Engines on an explicit clock, which one ingress replica sends streams to."""

    def __init__(self, load: float) -> None:
        self.now = 0.0
        self.known = fleet(REPLICAS, lambda: self.now)
        self.draw = random.Random(0)
        self.load = load
        self.waits: list[float] = []
        self._engines = {replica: Engine() for replica in self.known.listed()}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def run(self) -> float:
        """Serve all requests. Return the mean seconds from arrival to first token."""
        mean_tokens = 900.0
        at = 0.0
        for _ in range(REQUESTS):
            at += self.draw.expovariate(self.load * REPLICAS * TOKENS_PER_S / mean_tokens)
            self._at(at, self._arrive)
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()
        return sum(self.waits) / len(self.waits)

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), act))

    def _arrive(self) -> None:
        tokens = min(int(self.draw.lognormvariate(6.5, 0.7)), 8000)
        own = max(1, tokens * BYTES_PER_TOKEN // BLOCK_BYTES - 2)
        kind = self.draw.randrange(KINDS) if self.draw.random() < 0.5 else self.draw.getrandbits(60)
        asked = prompt(kind, kind + 1, *(self.draw.getrandbits(63) for _ in range(own)))
        slot = self.known.take(LIMIT, tokens, BUDGET_S, BATCH, asked)
        assert slot is not None
        engine = self._engines[slot.replica]
        engine.waiting.append((slot, self.now, self.draw.expovariate(2.0)))
        self._begin(engine)

    def _begin(self, engine: Engine) -> None:
        if engine.step or not engine.waiting:
            return
        engine.step, engine.waiting = engine.waiting, []
        step_s = sum(slot.pending_prompt_tokens for slot, _, _ in engine.step) / TOKENS_PER_S
        engine.ends = {number: at + step_s for number, at in engine.ends.items()}
        self._at(self.now + step_s, lambda: self._end_step(engine))

    def _end_step(self, engine: Engine) -> None:
        step, engine.step = engine.step, []
        for slot, arrived, decode_s in step:
            self.waits.append(self.now - arrived)
            self.known.note_first_byte(slot)
            number = next(self._numbers)
            engine.ends[number] = self.now + decode_s
            self._at(self.now + decode_s, lambda n=number, s=slot: self._end(engine, n, s))
        self._begin(engine)

    def _end(self, engine: Engine, number: int, slot: Reservation) -> None:
        if (at := engine.ends[number]) > self.now:
            self._at(at, lambda: self._end(engine, number, slot))
            return
        del engine.ends[number]
        self.known.release(slot)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_mean_wait_is_within_5_percent_of_a_full_scan(load: float, monkeypatch: pytest.MonkeyPatch) -> None:
    some_s = SimulatedFleet(load).run()
    monkeypatch.setattr(candidates, "ALL", REPLICAS)
    all_s = SimulatedFleet(load).run()

    assert some_s <= 1.05 * all_s
