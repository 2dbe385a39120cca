"""Pools of nodes with prices and speeds, and a fleet whose nodes come and go as they were recorded."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path

from replay.fleet.conditions import Conditions
from replay.fleet.fleet import Fleet, Start
from replay.fleet.kernel.steps import move_streams
from replay.fleet.layout import DRAINING
from replay.production import EPOCH
from replay.profile import Profile
from serve_app.policy.variant_state import VariantState
from serve_app.wire.data_plane import LEAVING_S
from traces.trace import TraceError

_LEARNED_S = 24 * 3600.0
"""The time before the window from which the policy knows how nodes are taken away."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes of one kind, each for one replica."""

    name: str
    usd_per_hour: float
    available: tuple[int, ...] = ()
    """The nodes that can be had in each interval; empty for any number at any time."""
    interval_s: float = 300.0
    notice_s: float = 120.0
    """The time between the announcement that a node is taken away and its end."""
    node_s: float = 0.0
    """The time in which a node comes that is there, beside the start of the replica."""
    speed: float = 1.0
    """The speed of a replica, relative to the profile's."""
    before: tuple[int, ...] = ()
    """The nodes that could be had in the intervals before the replay, from which the policy has learned."""

    @property
    def preemptible(self) -> bool:
        """Whether nodes may be taken away."""
        return bool(self.available)

    @property
    def serves_s(self) -> float:
        """How long a replica takes requests after the announcement."""
        return max(0.0, self.notice_s - LEAVING_S)

    def nodes(self, at: float) -> float:
        """Return the nodes that can be had at `at` seconds."""
        if not self.available:
            return inf
        return self.available[min(int(at / self.interval_s), len(self.available) - 1)]

    def known(self, replicas: int, start_s: float) -> VariantState:
        """Return what the policy has learned before the replay, if it had `replicas` nodes of this pool.

        A node that is there takes `node_s` to come, and a replica `start_s` to start.
        """
        state = VariantState(node_waits_s=(self.node_s,), since=EPOCH - self.interval_s * len(self.before))
        nodes = [min(replicas, count) for count in (*self.before, *self.available[:1])]
        for index, (old, new) in enumerate(pairwise(nodes)):
            at = EPOCH - self.interval_s * (len(self.before) - 1 - index)
            state = state.learn_ends([f"{index}-{k}" for k in range(old - new)], start_s, self.serves_s, at)
        return replace(state, try_at=None, try_wait_s=0.0)


class PooledFleet(Fleet):
    """A fleet whose replicas belong to pools, and what it costs."""

    def __init__(self, profile: Profile, conditions: Conditions, pools: Sequence[Pool]) -> None:
        super().__init__(profile, conditions)
        self.pools = {pool.name: pool for pool in pools}
        self.targets = dict.fromkeys(self.pools, 0)
        self.waiting: dict[str, list[float]] = {name: [] for name in self.pools}
        """When each replica without a node was asked for, by pool."""
        self.pool_of: dict[int, str] = {}
        """By number of the replica."""
        self.usd = 0.0
        self.taken = 0
        """Replicas whose nodes were taken away."""
        self.ending: dict[int, float] = {}
        """The slots of replicas whose nodes are about to end, and when they begin to drain."""
        self._just_taken: dict[str, list[int]] = {name: [] for name in self.pools}

    def of(self, pool: str) -> list[int]:
        """Return the slots of the ready replicas of a pool that keep their nodes."""
        return [slot for slot in self._ready(pool) if slot not in self.ending]

    def ending_of(self, pool: str) -> list[int]:
        """Return the slots of the ready replicas of a pool whose nodes are about to end."""
        return [slot for slot in self._ready(pool) if slot in self.ending]

    def _ready(self, pool: str) -> list[int]:
        return [slot for slot in self.ready_slots if self.pool_of[self.names[slot]] == pool]

    def starting_of(self, pool: str) -> list[Start]:
        """Return the starts under way in a pool."""
        return [start for start in self.starting.values() if self.pool_of[start.number] == pool]

    def warm(self, replicas: int) -> None:
        """Have so many replicas ready from the start, on the cheapest nodes of the fastest kind."""
        fastest = max(pool.speed for pool in self.pools.values())
        pools = [pool for pool in self.pools.values() if pool.speed == fastest]
        for pool in sorted(pools, key=lambda pool: pool.usd_per_hour):
            for _ in range(int(min(replicas, pool.nodes(0.0)))):
                slot, number = self._take_place(pool.name)
                super()._put_into_service(slot, number)
                self.targets[pool.name] += 1
                replicas -= 1
        self.target = sum(self.targets.values())
        self._count_peak()

    def set_target(self, target: int, first: Collection[int] = ()) -> None:
        """Do nothing: `set_targets` is called by the policy, and the bounds of a replay are the knobs'."""

    def set_targets(self, targets: Mapping[str, int]) -> None:
        """Ask for replicas, or stop some: first those without a node, then starting ones, then the newest."""
        self.targets = dict(targets)
        for pool, target in targets.items():
            waiting, starting, ready = self.waiting[pool], self.starting_of(pool), self.of(pool)
            excess = len(waiting) + len(starting) + len(ready) - target
            waiting += [self.now] * -excess
            while excess > 0 and waiting:
                waiting.pop()
                excess -= 1
            for start in sorted(starting, key=lambda each: -each.number)[: max(excess, 0)]:
                self._abandon(start.slot)
                excess -= 1
            for slot in sorted(ready, key=lambda each: -self.names[each])[: max(excess, 0)]:
                self._drain(slot)
        self.target = sum(targets.values())
        self._reap()

    def move_nodes(self) -> None:
        """Give nodes to the replicas that wait, and take nodes away that are not available any more."""
        for name, pool in self.pools.items():
            starting, ready = self.starting_of(name), self.of(name)
            most = pool.nodes(self.now)
            while self.waiting[name] and len(starting) + len(ready) < most:
                if self.now - self.waiting[name][0] < pool.node_s:
                    break
                starting.append(self._start(name, self.waiting[name].pop(0)))
            lacking = len(starting) + len(ready) - most
            for start in starting[: int(max(lacking, 0))]:
                self._abandon(start.slot)
                self._note_taken(name, start.number)
                lacking -= 1
            for slot in ready[: int(max(lacking, 0))]:
                self.ending[slot] = self.now + pool.serves_s
                self._note_taken(name, self.names[slot])
        for slot, at in list(self.ending.items()):
            if at <= self.now:
                self._drain(slot, sudden=not self.pools[self.pool_of[self.names[slot]]].notice_s)
                del self.ending[slot]
        self._reap()

    def just_taken(self, pool: str) -> list[int]:
        """Return the numbers of the replicas whose nodes were taken away since the last call."""
        found, self._just_taken[pool] = self._just_taken[pool], []
        return found

    def _take_place(self, pool: str) -> tuple[int, int]:
        slot, number = self._take_slot()
        self.pool_of[number] = pool
        self.memory.replicas["slowness"][slot] = 1.0 / self.pools[pool].speed
        return slot, number

    def _start(self, pool: str, asked_at: float) -> Start:
        slot, number = self._take_place(pool)
        took = float(self._random.uniform(*self.conditions.cold_start_s))
        start = self.starting[slot] = Start(number, slot, asked_at, self.now, took, warm_node=False)
        self.starts += 1
        self._count_peak()
        return start

    def _drain(self, slot: int, *, sudden: bool = False) -> None:
        """Send no more requests to a replica. After a sudden end its streams move at once."""
        self.memory.replicas["status"][slot] = DRAINING
        self._drain_began[slot] = self.now - (self.conditions.drain_move_after_s or 0.0) * sudden
        if sudden:
            move_streams(self.memory, slot, float(self.now))

    def _note_taken(self, pool: str, number: int) -> None:
        self.taken += 1
        self._just_taken[pool].append(number)

    def _put_into_service(self, slot: int, number: int) -> None:
        super()._put_into_service(slot, number)
        self._bill(number, self.cold_starts[-1][1])

    def _abandon(self, slot: int) -> None:
        start = self.starting[slot]
        self._bill(start.number, self.now - start.began_at)
        super()._abandon(slot)

    def _close(self, slot: int, at: float) -> None:
        self._bill(self.names[slot], at - self._began[slot])
        super()._close(slot, at)

    def _bill(self, number: int, seconds: float) -> None:
        self.usd += seconds / 3600.0 * self.pools[self.pool_of[number]].usd_per_hour


def least_usd(needs: Sequence[tuple[float, int]], pools: Sequence[Pool]) -> float:
    """Return a bound on the cost: the needs over time, each on the cheapest nodes that were available.

    Starts, spare replicas and moves cost nothing, and all is known in advance. A slower replica does as much
    less work as it is slower, and in truth even less.

    Args:
        needs: Seconds, and the replicas of speed 1 needed from then on.
        pools: The pools, none with a speed above 1.
    """
    usd, cheapest = 0.0, sorted(pools, key=lambda pool: pool.usd_per_hour / pool.speed)
    for (at, need), (until, _) in zip(needs, [*needs[1:], needs[-1]], strict=True):
        left = float(need)
        for pool in cheapest:
            used = min(left / pool.speed, pool.nodes(at))
            usd += used * pool.usd_per_hour * (until - at) / 3600.0
            left -= used * pool.speed
    return usd


def read_pool(argument: str, usd_per_hour: float, start_h: float, notice_s: float) -> Pool:
    """Return the spot pool of `ZONE=FILE`, from `start_h` hours on.

    The file is one of github.com/skypilot-org/spot-traces: the nodes available every `gap_seconds`. Raises
    TraceError for another argument or file.
    """
    zone, _, file = argument.partition("=")
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
        gap_s, data = float(document["metadata"]["gap_seconds"]), [int(each) for each in document["data"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{argument}: must be ZONE=FILE with a spot trace: {error}") from error
    first = int(start_h * 3600 / gap_s)
    before, part = data[max(0, first - int(_LEARNED_S / gap_s)) : first], data[first:]
    if not part:
        raise TraceError(f"{argument}: the trace ends before hour {start_h:g}")
    return Pool(f"spot-{zone}", usd_per_hour, tuple(part), gap_s, notice_s, before=tuple(before))


def read_kind(argument: str) -> Pool:
    """Return the pool of `NAME=USD:SPEED`. Raises TraceError for another argument."""
    name, _, numbers = argument.partition("=")
    try:
        usd, speed = map(float, numbers.split(":"))
    except ValueError:
        raise TraceError(f"{argument}: must be NAME=USD:SPEED") from None
    return Pool(name, usd, speed=speed)
