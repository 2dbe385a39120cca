"""The simulated fleet as its driver sees it: replicas that start, serve, drain and end, and their bill."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from serve_app.replay.fleet import kernel
from serve_app.replay.fleet.layout import (
    DRAINING,
    FREE,
    READY,
    RULES,
    STARTING,
    Floats,
    Memory,
    allocate,
    grow_replicas,
    grow_requests,
    grow_windows,
)
from serve_app.replay.profile import Profile
from serve_app.replay.result import GpuSeconds
from serve_app.replay.trace import Chunk

WINDOW_S = 60.0
_MOST_BLOCKS = 256
"""Prefix blocks followed of one prompt: 128 k tokens in blocks of 512."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the fleet runs under, besides its profile."""

    ttft_target_s: float
    itl_target_s: float
    cold_start_s: tuple[float, float]
    """Least and most seconds of a cold start, drawn evenly."""
    seed: int = 0
    routing: str = "tokens"
    """`tokens`: least prompt tokens outstanding, then least requests, as the ingress does; `two-choices`:
    the fewer requests in flight of two replicas drawn at random."""
    max_held: int = 1000
    """Requests the ingress holds at most; beyond them it refuses."""
    start_failures: float = 0.0
    """Share of starts that fail, at an even point of their cold start; they are tried again."""
    capacity: int | None = None
    """Replicas the cluster has room for; those beyond wait for a place. None: as many as are asked for."""
    block_tokens: int = 0
    """Tokens of one prefix block, where the trace carries them."""
    bytes_per_token: float = 4.4
    """Of request bodies: English in JSON."""
    body_noise: float = 0.2
    """Bodies differ from that by at most so much, evenly, so that nobody can read tokens off bytes."""


@dataclass(slots=True)
class Start:
    """A replica between being asked for and taking requests."""

    number: int
    slot: int
    asked_at: float
    began_at: float
    cold_start_s: float


class Fleet:
    """Replicas by slot, with numbers that are never used twice. Times are seconds since the replay began."""

    def __init__(self, profile: Profile, conditions: Conditions, *, expected_replicas: int = 32) -> None:
        self.profile = profile
        self.conditions = conditions
        self._random = np.random.default_rng(conditions.seed)
        self.memory: Memory = allocate(
            _rules(profile, conditions),
            replicas=2 * expected_replicas,
            requests=4096,
            windows=128,
            prompt_blocks=_MOST_BLOCKS if conditions.block_tokens else 1,
            cache_blocks=profile.kv_cache_tokens // conditions.block_tokens if conditions.block_tokens else 1,
        )
        self.memory.totals["random"] = np.uint64(
            self._random.integers(1, 2**63, dtype=np.uint64) | np.uint64(1)
        )
        self.now = 0.0
        self.target = 0
        self.starting: dict[int, Start] = {}
        """By slot."""
        self.pending: list[float] = []
        """When each replica without a place was asked for."""
        self.names: dict[int, int] = {}
        """The number of the replica in a slot, of those that are ready or draining."""
        self.cold_starts: list[tuple[int, float]] = []
        """(number, seconds) of every start that came to its end, in their order."""
        self.starts = self.failed_starts = self.peak = 0
        self._began: dict[int, float] = {}
        self._drain_began: dict[int, float] = {}
        self._free: list[int] = list(range(len(self.memory.replicas)))
        heapq.heapify(self._free)
        self._numbers = 0
        self._serving = self._idle = self._warming = self._draining = 0.0

    # -- replicas

    @property
    def ready_slots(self) -> list[int]:
        """Slots of the replicas that take requests."""
        status = self.memory.replicas["status"]
        return [slot for slot in self.names if status[slot] == READY]

    @property
    def ready(self) -> int:
        """Replicas that take requests."""
        return len(self.names) - len(self._drain_began)

    @property
    def draining(self) -> int:
        """Replicas that end what they have begun."""
        return len(self._drain_began)

    def warm(self, replicas: int) -> None:
        """Have so many replicas ready from the start, without a cold start."""
        for _ in range(replicas):
            slot, number = self._take_slot()
            self._put_into_service(slot, number)
        self.target = replicas
        self._count_peak()

    def set_target(self, target: int) -> None:
        """Start or stop replicas until `target` are ready, starting or pending. Those not ready stop first."""
        self.target = target
        while self.ready + len(self.starting) + len(self.pending) < target:
            self.pending.append(self.now)
        excess = self.ready + len(self.starting) + len(self.pending) - target
        for _ in range(min(excess, len(self.pending))):
            self.pending.pop()
            excess -= 1
        for slot in sorted(self.starting, key=lambda s: -self.starting[s].number)[: max(excess, 0)]:
            self._abandon(slot)
            excess -= 1
        # Ray names no order among replicas on nodes of their own; the newest go.
        for slot in sorted(self.ready_slots, key=lambda s: -self.names[s])[: max(excess, 0)]:
            self.memory.replicas["status"][slot] = DRAINING
            self._drain_began[slot] = self.now
        self._place()
        self._reap()
        self._count_peak()

    def next_event(self) -> float:
        """When the next start ends."""
        return min((start.began_at + start.cold_start_s for start in self.starting.values()), default=math.inf)

    def settle(self) -> None:
        """Put into service what has started by now, and end what has drained."""
        due = [s for s, start in self.starting.items() if start.began_at + start.cold_start_s <= self.now]
        for slot in sorted(due, key=lambda s: self.starting[s].number):
            start = self.starting[slot]
            if self._fails(start):
                self.failed_starts += 1
                self._abandon(slot)
                self.pending.append(start.asked_at)
                continue
            del self.starting[slot]
            self._warming += self.now - start.began_at
            self.cold_starts.append((start.number, start.cold_start_s))
            self._put_into_service(slot, start.number)
        if due:
            self._place()
            kernel.release(self.memory, self.now)
        self._reap()

    # -- time

    def take(self, chunk: Chunk, start: int, until: float) -> int:
        """Take the requests of `chunk` from `start` on that arrive before `until`; see `kernel.arrive`."""
        self._room_for_windows(until)
        while True:
            start = kernel.arrive(
                self.memory,
                chunk.arrival_s,
                chunk.input_tokens,
                chunk.output_tokens,
                chunk.block_starts,
                chunk.blocks,
                start,
                until,
                self.conditions.body_noise,
            )
            if self.memory.totals["free"][0] >= 0:
                return start
            self.memory = grow_requests(self.memory, 2 * len(self.memory.requests))

    def advance(self, until: float) -> None:
        """Take every engine step that ends by `until`, and make that the present."""
        self._room_for_windows(until)
        kernel.advance(self.memory, until)
        self.now = until

    def end(self) -> None:
        """Stop the bill: whatever still exists is billed up to now."""
        for slot in list(self.starting):
            self._abandon(slot)
        for slot in list(self.names):
            self._close(slot)

    def gpu_seconds(self) -> GpuSeconds:
        """The bill so far, of replicas that have ended; of all after `end`."""
        gpus = self.profile.gpus
        return GpuSeconds(
            self._serving * gpus, self._idle * gpus, self._warming * gpus, self._draining * gpus
        )

    def report(self, slot: int, out: Floats) -> None:
        """Write the signals of one replica, in the order of `EngineSignals`."""
        kernel.report(self.memory, slot, self.now, out)

    # -- inside

    def _room_for_windows(self, until: float) -> None:
        windows = int(until / WINDOW_S) + 2
        if windows > len(self.memory.windows):
            self.memory = grow_windows(self.memory, 2 * windows)

    def _fails(self, start: Start) -> bool:
        share = self.conditions.start_failures
        return bool(share) and np.random.default_rng((self.conditions.seed, start.number)).random() < share

    def _take_slot(self) -> tuple[int, int]:
        if not self._free:
            old = len(self.memory.replicas)
            self.memory = grow_replicas(self.memory, 2 * old)
            self._free = list(range(old, 2 * old))
        slot = heapq.heappop(self._free)
        self._numbers += 1
        kernel.start_replica(self.memory, slot)
        return slot, self._numbers

    def _place(self) -> None:
        """Begin the starts that the cluster has room for."""
        capacity = self.conditions.capacity
        while self.pending and (capacity is None or len(self.names) + len(self.starting) < capacity):
            asked_at = self.pending.pop(0)
            slot, number = self._take_slot()
            low, high = self.conditions.cold_start_s
            took = float(self._random.uniform(low, high))
            start = Start(number, slot, asked_at, self.now, took)
            if self._fails(start):
                start.cold_start_s *= float(self._random.random())
            self.starting[slot] = start
            self.starts += 1

    def _put_into_service(self, slot: int, number: int) -> None:
        self.memory.replicas["status"][slot] = READY
        self.names[slot] = number
        self._began[slot] = self.now

    def _abandon(self, slot: int) -> None:
        start = self.starting.pop(slot)
        self._warming += self.now - start.began_at
        self.memory.replicas["status"][slot] = FREE
        heapq.heappush(self._free, slot)

    def _reap(self) -> None:
        for slot in [s for s in self._drain_began if not self.memory.replicas["in_flight"][s]]:
            self._close(slot)

    def _close(self, slot: int) -> None:
        """The end of a replica that served."""
        began, drain_began = self._began.pop(slot), self._drain_began.pop(slot, None)
        served_until = self.now if drain_began is None else drain_began
        busy = float(self.memory.replicas["busy_s"][slot])
        drained = self.now - served_until
        # While it drains it is busy all the time.
        serving = min(max(busy - drained, 0.0), served_until - began)
        self._serving += serving
        self._idle += served_until - began - serving
        self._draining += drained
        del self.names[slot]
        self.memory.replicas["status"][slot] = FREE
        heapq.heappush(self._free, slot)
        if self.pending:
            self._place()

    def _count_peak(self) -> None:
        self.peak = max(self.peak, len(self.names) + len(self.starting))


def _rules(profile: Profile, conditions: Conditions) -> np.ndarray:  # type: ignore[type-arg]
    rules = np.zeros(1, RULES)
    step = profile.step
    for name, value in {
        "base_s": step.base_s,
        "per_sequence_s": step.per_sequence_s,
        "per_kv_token_s": step.per_kv_token_s,
        "per_prefill_token_s": step.per_prefill_token_s,
        "max_num_seqs": profile.max_num_seqs,
        "max_num_batched_tokens": profile.max_num_batched_tokens,
        "kv_cache_tokens": profile.kv_cache_tokens,
        "block_tokens": conditions.block_tokens,
        "ttft_target_s": conditions.ttft_target_s,
        "itl_target_s": conditions.itl_target_s,
        "max_held": conditions.max_held,
        "release": profile.max_num_seqs,
        "alpha": 64.0,
        "two_choices": conditions.routing == "two-choices",
        "bytes_per_token": conditions.bytes_per_token,
        "window_s": WINDOW_S,
    }.items():
        rules[name] = value
    return rules


__all__ = ["DRAINING", "READY", "STARTING", "Conditions", "Fleet", "Start"]
