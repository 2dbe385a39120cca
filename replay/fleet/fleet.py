"""The simulated fleet as its driver sees it: replicas that start, serve, drain and end, and their bill."""

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from replay.fleet.conditions import Conditions, rules
from replay.fleet.kernel.arrivals import arrive
from replay.fleet.kernel.histograms import write_reports
from replay.fleet.kernel.routing import release_background, send_queued
from replay.fleet.kernel.steps import advance, move_streams
from replay.fleet.layout import (
    DRAINING,
    FREE,
    READY,
    WINDOW_S,
    Floats,
    Memory,
    allocate,
    grow_replicas,
    grow_requests,
    grow_windows,
    renew_replica,
)
from replay.profile import Profile
from serve_app.wire.signals import ENGINE_FIELDS
from traces.trace import Chunk

_MOST_BLOCKS = 256
"""Prefix blocks followed of one prompt: 128 k tokens in blocks of 512."""


@dataclass(frozen=True, slots=True)
class GpuSeconds:
    """GPU-seconds by the state of the replicas, from the start of a cold start to the end of the drain."""

    serving: float
    """Ready, with a step running."""
    idle: float
    """Ready, without one."""
    warming: float
    """Starting, failed starts included."""
    draining: float

    @property
    def total(self) -> float:
        """The GPU-seconds that are paid for."""
        return self.serving + self.idle + self.warming + self.draining


@dataclass(slots=True)
class Start:
    """A replica between being asked for and taking requests."""

    number: int
    slot: int
    asked_at: float
    began_at: float
    cold_start_s: float
    warm_node: bool

    @property
    def ends_at(self) -> float:
        """The time at which it is ready or has failed."""
        return self.began_at + self.cold_start_s


class Fleet:
    """Replicas by slot, with numbers that are never used twice. Times are seconds since the replay began."""

    def __init__(self, profile: Profile, conditions: Conditions, *, expected_replicas: int = 32) -> None:
        self.profile = profile
        self.conditions = conditions
        self._random = np.random.default_rng(conditions.seed)
        blocks = conditions.block_tokens
        self.memory: Memory = allocate(
            rules(profile, conditions),
            replicas=min(max(2 * expected_replicas, 1), 64),
            requests=4096,
            windows=128,
            prompt_blocks=_MOST_BLOCKS if blocks else 1,
            cache_blocks=max(profile.kv_cache_tokens // blocks, 1) if blocks else 1,
        )
        self.memory.totals["random"] = np.uint64(
            self._random.integers(1, 2**63, dtype=np.uint64) | np.uint64(1)
        )
        self.now = 0.0
        self.target = 0
        self.starting: dict[int, Start] = {}
        """Starts under way, by slot."""
        self.pending: list[float] = []
        """When each replica that waits for room in the cluster was asked for."""
        self.names: dict[int, int] = {}
        """The number of the replica in a slot, of those that are ready or draining."""
        self.cold_starts: list[tuple[int, float, bool]] = []
        """(number, seconds, whether on a warm node) of every start that came to its end, in their order."""
        self.starts = self.failed_starts = self.peak = 0
        self._began: dict[int, float] = {}
        self._drain_began: dict[int, float] = {}
        self._on_warm_nodes: set[int] = set()
        """The slots of the replicas on warm nodes."""
        self._free: list[int] = list(range(len(self.memory.replicas)))
        self._numbers = 0
        self._serving = self._idle = self._warming = self._draining = 0.0

    # -- replicas

    @property
    def ready_slots(self) -> list[int]:
        """Slots of the replicas that take requests."""
        return [slot for slot in self.names if slot not in self._drain_began]

    @property
    def ready(self) -> int:
        """Replicas that take requests."""
        return len(self.names) - len(self._drain_began)

    @property
    def draining(self) -> int:
        """Replicas that finish their requests and take no new ones."""
        return len(self._drain_began)

    @property
    def warm_node_free(self) -> bool:
        """Whether the next replica has room on a warm node."""
        return len(self._on_warm_nodes) < self.conditions.warm_nodes

    @property
    def open_requests(self) -> int:
        """Requests that were admitted and do not have all of their tokens."""
        return int(self.memory.totals["open"][0])

    def warm(self, replicas: int) -> None:
        """Have so many replicas ready from the start, without a cold start."""
        for _ in range(replicas):
            slot, number = self._take_slot()
            self._put_into_service(slot, number)
        self.target = replicas
        self._count_peak()

    def ready_for_s(self, slot: int) -> float:
        """Seconds for which the ready replica in `slot` has taken requests."""
        return self.now - self._began[slot]

    def set_target(self, target: int, first: Collection[int] = ()) -> None:
        """Start or stop replicas until `target` are ready, starting or pending.

        The unready stop first, then those with the numbers `first`.
        """
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
        newest = sorted(self.ready_slots, key=lambda s: (self.names[s] not in first, -self.names[s]))
        for slot in newest[: max(excess, 0)]:
            self.memory.replicas["status"][slot] = DRAINING
            self._drain_began[slot] = self.now
        self._reap()
        self._place()

    def next_event(self) -> float:
        """The time at which the next start ends; infinite without one."""
        return min((start.ends_at for start in self.starting.values()), default=math.inf)

    def settle(self) -> None:
        """Put into service what has started by now, move streams off replicas that drain, and end those."""
        due = [start for start in self.starting.values() if start.ends_at <= self.now]
        for start in sorted(due, key=lambda start: start.number):
            if self._fails(start):
                self.failed_starts += 1
                self._abandon(start.slot)
                self.pending.append(start.asked_at)
                continue
            del self.starting[start.slot]
            self._warming += self.now - start.began_at
            self.cold_starts.append((start.number, start.cold_start_s, start.warm_node))
            self._put_into_service(start.slot, start.number)
        after = self.conditions.drain_move_after_s
        for slot, began in self._drain_began.items():
            if after is not None and self.now - began >= after:
                move_streams(self.memory, slot, float(self.now))
        self._reap()
        self._place()
        if due:
            send_queued(self.memory, float(self.now))
        if self.memory.totals["background_held"][0]:
            release_background(self.memory, float(self.now))

    # -- time

    def take(self, chunk: Chunk, start: int, until: float) -> int:
        """Take the requests of `chunk` from `start` on that arrive before `until`; see `arrive`."""
        self._room_for_windows(until)
        while True:
            start = arrive(
                self.memory,
                chunk.arrival_s,
                chunk.input_tokens,
                chunk.output_tokens,
                chunk.block_starts,
                chunk.blocks,
                chunk.lanes,
                chunk.adapters,
                start,
                float(until),
                float(self.conditions.body_noise),
            )
            if self.memory.totals["free"][0] >= 0:
                return start
            self.memory = grow_requests(self.memory, 2 * len(self.memory.requests))

    def advance(self, until: float) -> None:
        """Take every engine step that ends by `until`, and set the time to it."""
        self._room_for_windows(until)
        advance(self.memory, float(until))
        self.now = until

    def end(self) -> None:
        """End the replay: replicas that still exist are billed up to now."""
        self.pending.clear()
        for slot in list(self.starting):
            self._abandon(slot)
        for slot in list(self.names):
            self._close(slot, self.now)

    def gpu_seconds(self) -> GpuSeconds:
        """The bill so far, of replicas that have ended; of all after `end`."""
        gpus = self.profile.gpus
        return GpuSeconds(
            self._serving * gpus, self._idle * gpus, self._warming * gpus, self._draining * gpus
        )

    def report(self, slots: Sequence[int]) -> Floats:
        """The signals of replicas, a row each, in the order of `EngineSignals`. Means restart at zero."""
        rows = np.zeros((len(slots), len(ENGINE_FIELDS)))
        write_reports(self.memory, np.array(slots, dtype=np.int64), float(self.now), rows)
        return rows

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
        if self.warm_node_free:
            self._on_warm_nodes.add(slot)
        renew_replica(self.memory, slot)
        return slot, self._numbers

    def _place(self) -> None:
        """Begin the starts that the cluster has room for."""
        capacity = self.conditions.capacity
        while self.pending and (capacity is None or len(self.names) + len(self.starting) < capacity):
            asked_at = self.pending.pop(0)
            slot, number = self._take_slot()
            warm_node = slot in self._on_warm_nodes
            low, high = (warm_node and self.conditions.warm_node_start_s) or self.conditions.cold_start_s
            took = float(self._random.uniform(low, high))
            start = Start(number, slot, asked_at, self.now, took, warm_node)
            if self._fails(start):
                start.cold_start_s *= float(self._random.random())
            self.starting[slot] = start
            self.starts += 1
        self._count_peak()

    def _put_into_service(self, slot: int, number: int) -> None:
        self.memory.replicas["status"][slot] = READY
        self.names[slot] = number
        self._began[slot] = self.now

    def _abandon(self, slot: int) -> None:
        start = self.starting.pop(slot)
        self._warming += self.now - start.began_at
        self._give_up(slot)

    def _reap(self) -> None:
        """End the replicas that have drained, as of when their last request ended."""
        replicas = self.memory.replicas
        for slot, began in list(self._drain_began.items()):
            if not replicas["in_flight"][slot] and not replicas["background"][slot]:
                self._close(slot, max(began, float(replicas["last_end"][slot])))

    def _close(self, slot: int, at: float) -> None:
        """The end, at a time up to now, of a replica that served."""
        began, drain_began = self._began.pop(slot), self._drain_began.pop(slot, None)
        served_until = at if drain_began is None else drain_began
        replica = self.memory.replicas[slot]
        # A step is counted when it begins; its remaining time is not billed.
        under_way = replica["step_end"] - at if replica["step_end"] < math.inf else 0.0
        drained = at - served_until
        # While it drains it is busy all the time.
        busy = float(replica["busy_s"] - under_way) - drained
        serving = min(max(busy, 0.0), served_until - began)
        self._serving += serving
        self._idle += served_until - began - serving
        self._draining += drained
        del self.names[slot]
        self._give_up(slot)

    def _give_up(self, slot: int) -> None:
        self.memory.replicas["status"][slot] = FREE
        self._on_warm_nodes.discard(slot)
        heapq.heappush(self._free, slot)

    def _count_peak(self) -> None:
        self.peak = max(self.peak, len(self.names) + len(self.starting))
