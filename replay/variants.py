"""Replays of one model on several pools of nodes, such as spot nodes of three zones and on-demand nodes.

A pool has a price, and the speed of its GPUs. If its nodes can be taken away, it has a recorded number of
nodes that are available at each time. `Mixed` calls the functions that the controller calls.
"""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from replay.defaults import KNOBS
from replay.fleet.conditions import Conditions
from replay.fleet.fleet import Fleet, Start
from replay.fleet.layout import DRAINING
from replay.production import EPOCH
from replay.profile import Profile, load_profile
from replay.scenario import scenario
from serve_app.policy.decide import Decision, next_decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.policy.variant_decision import VariantNow, decide_variants
from serve_app.policy.variant_state import VariantMixState, VariantState
from serve_app.settings.knobs import Knobs
from serve_app.wire.data_plane import LEAVING_S
from serve_app.wire.served_models import ServedVariant
from serve_app.wire.signals import EngineSignals, IngressSignals, Reading
from traces import open_trace
from traces.trace import TraceError

_POLICIES = ("ours", "skyserve", "on-demand", "spot", "one-pool", "kind")
_LONGEST_S = 6 * 3600.0
_LEARNED_S = 24 * 3600.0
"""The time before the window from which the policy knows how nodes are taken away."""
_GRACE_S = 5.0
"""As `controller.contexts`: a younger request for a replica does not count as pending."""


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
        """Have so many replicas ready from the start, on the cheapest nodes that are there."""
        for pool in sorted(self.pools.values(), key=lambda pool: pool.usd_per_hour):
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
                self._drain(slot)
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

    def _drain(self, slot: int) -> None:
        self.memory.replicas["status"][slot] = DRAINING
        self._drain_began[slot] = self.now

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


class Mixed:
    """The policy of a model with variants, as a controller of a replay."""

    interval_s = 1.0
    errors = 0
    wanted: int | None = None

    def __init__(self, knobs: Knobs, name: str = "ours") -> None:
        self.name = name
        self.knobs = knobs
        self.state = PolicyState()
        self.needs: list[tuple[float, int]] = []
        """Seconds, and the replicas needed from then on."""
        self._ingress: Reading[IngressSignals] | None = None

    def step(self, fleet: Fleet) -> int:
        """One turn of the controller."""
        assert isinstance(fleet, PooledFleet)
        fleet.move_nodes()
        now = EPOCH + fleet.now
        if self.state.last_at is None:  # nodes are known from earlier days
            start_s = sum(fleet.conditions.cold_start_s) / 2.0
            known = {name: pool.known(fleet.target, start_s) for name, pool in fleet.pools.items()}
            self.state = replace(self.state, mix=VariantMixState(known))
        variants = [self._now(fleet, pool) for pool in fleet.pools.values()]
        found, self.state = decide_variants(variants, self.knobs, self.state, now, self._decider(now))
        self.needs.append((fleet.now, self.state.mix.units))
        fleet.set_targets(self.targets(fleet, found.targets))
        self._ingress = Reading(ingress_signals(fleet), 0.0)
        return fleet.target

    def targets(self, fleet: PooledFleet, targets: Mapping[str, int]) -> Mapping[str, int]:
        """Return the replicas to ask for by pool, where the policy chose `targets`."""
        return targets

    def quiet_until(self, next_arrival: float) -> float:
        """Unknown: nodes may come and go at any time."""
        return 0.0

    def decisions(self) -> list[dict[str, Any]]:
        """None: the records are the controller's."""
        return []

    def _decider(self, now: float) -> Callable[[Snapshot, PolicyState], tuple[Decision, PolicyState]]:
        return lambda snapshot, state: next_decision(snapshot, self.knobs, state, now)

    def _now(self, fleet: PooledFleet, pool: Pool) -> VariantNow:
        ready, starting, waiting = (
            fleet.of(pool.name),
            fleet.starting_of(pool.name),
            fleet.waiting[pool.name],
        )
        ending = fleet.ending_of(pool.name)
        rows = fleet.report([*ready, *ending]).tolist()
        engines = {
            f"r{fleet.names[slot]}": Reading(EngineSignals(*row), 0.0)
            for slot, row in zip([*ready, *ending], rows, strict=True)
        }
        since_s = fleet.now - waiting[0] if waiting else 0.0
        pending = len(waiting) if since_s >= _GRACE_S else 0
        starts = [seconds for number, seconds, _ in fleet.cold_starts if fleet.pool_of[number] == pool.name]
        snapshot = Snapshot(
            target=fleet.targets[pool.name] + len(ending),
            ready=len(ready) + len(ending),
            engines=engines,
            ingress={} if self._ingress is None else {"ingress": self._ingress},
            starting=len(starting) + (len(waiting) - pending),
            pending=pending,
            pending_s=since_s,
            cold_node_start_s=float(np.median(starts[-5:])) if starts else None,
        )
        served = ServedVariant(
            pool.name,
            pool.name,
            {},
            "",
            pool.usd_per_hour,
            pool.preemptible,
            0,
            10_000,
            pool.speed,
            f"{pool.speed:g}",
        )
        taken = tuple(f"r{number}" for number in fleet.just_taken(pool.name))
        return VariantNow(served, snapshot, len(ending), len(ready) + len(starting), taken, pool.serves_s)


class SkyServe(Mixed):
    """SkyServe's rule: one spot replica more than needed, and an on-demand one for each that is not ready.

    The need is that of our policy. Zones that have just lost a node come last, as in SkyServe's placement.
    """

    EXTRA = 1

    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs, "SkyServe's rule")
        self._lost_at: dict[str, float] = {}

    def targets(self, fleet: PooledFleet, targets: Mapping[str, int]) -> Mapping[str, int]:
        """Return the replicas to ask for by pool."""
        need = self.state.mix.units
        wanted = dict.fromkeys(targets, 0)
        if not need:
            return wanted
        spot = [name for name, pool in fleet.pools.items() if pool.preemptible]
        for name in spot:
            if self.state.mix.variants[name].is_dry(EPOCH + fleet.now):
                self._lost_at[name] = fleet.now
            wanted[name] = len(fleet.of(name)) + len(fleet.starting_of(name))
        have, most = sum(wanted.values()), need + self.EXTRA
        best = min(spot, key=lambda name: (self._lost_at.get(name, -inf), wanted[name]))
        wanted[best] += max(0, most - have)
        for name in sorted(spot, key=lambda name: -self._lost_at.get(name, -inf)):
            fewer = min(wanted[name], max(0, sum(wanted[each] for each in spot) - most))
            wanted[name] -= fewer
        ready = sum(len(fleet.of(name)) for name in spot)
        certain = [name for name, pool in fleet.pools.items() if not pool.preemptible]
        wanted[certain[0]] = min(need, max(0, most - ready))
        return wanted


def ingress_signals(fleet: Fleet) -> IngressSignals:
    """Return the report of the ingress."""
    totals = fleet.memory.totals[0]
    head, tail = int(totals["held_head"]), int(totals["held_tail"])
    arrived = fleet.memory.requests["arrived"]
    return replace(
        IngressSignals(),
        arrivals_total=float(totals["arrivals"]),
        arrived_bytes_total=float(totals["arrived_bytes"]),
        held_requests=float(totals["held"]),
        held_bytes=float(totals["held_bytes"]),
        oldest_held_s=float(fleet.now - arrived[head]) if head >= 0 else 0.0,
        newest_held_s=float(fleet.now - arrived[tail]) if tail >= 0 else 0.0,
    )


def least_usd(needs: Sequence[tuple[float, int]], pools: Sequence[Pool]) -> float:
    """Return a bound on the cost: the needs over time, each on the cheapest nodes that were available.

    Starts, spare replicas and moves cost nothing, and all is known in advance.

    Args:
        needs: Seconds, and the replicas needed from then on.
        pools: The pools.
    """
    usd, cheapest = 0.0, sorted(pools, key=lambda pool: pool.usd_per_hour)
    for (at, need), (until, _) in zip(needs, [*needs[1:], needs[-1]], strict=True):
        left = float(need)
        for pool in cheapest:
            used = min(left, pool.nodes(at))
            usd += used * pool.usd_per_hour * (until - at) / 3600.0
            left -= used
    return usd


def read_pool(argument: str, usd_per_hour: float, start_h: float, length_s: float) -> Pool:
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
    part = data[first : first + int(length_s / gap_s) + 1]
    before = data[max(0, first - int(_LEARNED_S / gap_s)) : first]
    if not part:
        raise TraceError(f"{argument}: the trace ends before hour {start_h:g}")
    return Pool(f"spot-{zone}", usd_per_hour, tuple(part), gap_s, before=tuple(before))


def read_kind(argument: str) -> Pool:
    """Return the pool of `NAME=USD:SPEED`. Raises TraceError for another argument."""
    name, _, numbers = argument.partition("=")
    try:
        usd, speed = map(float, numbers.split(":"))
    except ValueError:
        raise TraceError(f"{argument}: must be NAME=USD:SPEED") from None
    return Pool(name, usd, speed=speed)


def main() -> int:
    """Replay one model on on-demand nodes and on spot nodes of several zones, from the command line."""
    parser = argparse.ArgumentParser(prog="python -m replay.variants", description=main.__doc__)
    parser.add_argument("window", type=Path, help="a trace of requests")
    parser.add_argument(
        "--spot",
        action="append",
        required=True,
        metavar="ZONE=FILE",
        help="repeatable; the policy one-pool has the first zone alone",
    )
    parser.add_argument(
        "--kind",
        action="append",
        default=[],
        metavar="NAME=USD:SPEED",
        help="on-demand nodes of another kind, for ours and the policy kind; repeatable",
    )
    parser.add_argument("--start-hour", type=float, default=0.0, help="where the spot traces begin")
    parser.add_argument("--usd", type=float, nargs=2, default=(3.70, 1.20), metavar=("ON_DEMAND", "SPOT"))
    parser.add_argument("--profile", default="a100-80gb", help="the hardware of a replica")
    parser.add_argument("--policies", nargs="+", default=list(_POLICIES[:-1]), choices=_POLICIES)
    asked = parser.parse_args()
    print(
        "| policy | attainment | TTFT in time | USD | starts | nodes taken away |\n|---|---|---|---|---|---|"
    )
    try:
        profile = load_profile(asked.profile)
        certain = Pool("on-demand", asked.usd[0])
        spot = [read_pool(each, asked.usd[1], asked.start_hour, _LONGEST_S) for each in asked.spot]
        world = scenario(open_trace(asked.window), knobs=KNOBS, profile=profile)
        warm = world.warm()
        kinds = [read_kind(each) for each in asked.kind]
        for name in asked.policies:
            policy = SkyServe(KNOBS) if name == "skyserve" else Mixed(KNOBS, name)
            own = {"on-demand": [certain], "spot": spot, "one-pool": spot[:1], "kind": kinds[:1]}
            own["ours"] = [certain, *spot, *kinds]
            pools = own.get(name, [certain, *spot])
            fleet = PooledFleet(profile, world.conditions, pools)
            result = world.run(policy, warm=warm, fleet=fleet)
            print(
                f"| {policy.name} | {result.attainment:.1%} | {result.ttft_ok:.1%} | {fleet.usd:.2f} | "
                f"{result.starts} | {fleet.taken} |",
                flush=True,
            )
            if name == "on-demand":
                bound = least_usd(policy.needs, [certain, *spot])
                print(f"| bound | | | {bound:.2f} | | |", flush=True)
    except TraceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
