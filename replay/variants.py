"""Replays of one model on several pools of nodes, such as spot nodes of three zones and on-demand nodes.

`Mixed` calls the functions that the controller calls.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from replay.defaults import KNOBS
from replay.fleet.fleet import Fleet
from replay.pools import Pool, PooledFleet, least_usd, read_kind, read_pool
from replay.production import EPOCH, ingress_signals
from replay.profile import load_profile
from replay.scenario import scenario
from serve_app.policy.decide import Decision, next_decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.policy.variant_decision import VariantNow, decide_variants
from serve_app.policy.variant_state import VariantMixState
from serve_app.settings.knobs import Knobs
from serve_app.wire.served_models import ServedVariant
from serve_app.wire.signals import EngineSignals, IngressSignals, Reading
from traces import open_trace
from traces.trace import TraceError

_POLICIES = ("ours", "skyserve", "on-demand", "spot", "one-pool", "kind")
_GRACE_S = 5.0
"""As `controller.contexts`: a younger request for a replica does not count as pending."""


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
        if self.state.last_at is not None:  # a subclass and ending replicas change targets, but not the need
            asked = {each.name: each.snapshot.target for each in variants}
            self.state = replace(self.state, mix=replace(self.state.mix, asked=asked))
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
        ready, ending = fleet.of(pool.name), fleet.ending_of(pool.name)
        starting, waiting = fleet.starting_of(pool.name), fleet.waiting[pool.name]
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
        kind = f"{pool.speed:g}"
        served = ServedVariant(
            pool.name, pool.name, {}, "", pool.usd_per_hour, pool.preemptible, 0, 10_000, pool.speed, kind
        )
        taken = tuple(f"r{number}" for number in fleet.just_taken(pool.name))
        return VariantNow(served, snapshot, len(ending), len(ready) + len(starting), taken, pool.serves_s)


class SkyServe(Mixed):
    """SkyServe's rule: one spot replica more than needed, and an on-demand one for each that is not ready.

    The need is that of our policy. Zones that have just lost a node come last, as in SkyServe's placement.
    """

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
        have, most = sum(wanted.values()), need + 1
        best = min(spot, key=lambda name: (self._lost_at.get(name, -inf), wanted[name]))
        wanted[best] += max(0, most - have)
        for name in sorted(spot, key=lambda name: -self._lost_at.get(name, -inf)):
            fewer = min(wanted[name], max(0, sum(wanted[each] for each in spot) - most))
            wanted[name] -= fewer
        ready = sum(len(fleet.of(name)) for name in spot)
        certain = [name for name, pool in fleet.pools.items() if not pool.preemptible]
        wanted[certain[0]] = min(need, max(0, most - ready))
        return wanted


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
    parser.add_argument("--notice-s", type=float, default=120.0, help="the announcement of an end of a node")
    parser.add_argument("--min-on-demand", type=int, default=KNOBS.min_on_demand, help="the knob")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--usd", type=float, nargs=2, default=(3.70, 1.20), metavar=("ON_DEMAND", "SPOT"))
    parser.add_argument("--profile", default="a100-80gb", help="the hardware of a replica")
    parser.add_argument("--policies", nargs="+", default=list(_POLICIES[:-1]), choices=_POLICIES)
    asked = parser.parse_args()
    knobs = KNOBS.model_copy(update={"min_on_demand": asked.min_on_demand})
    print(
        "| policy | attainment | TTFT in time | USD | starts | nodes taken away |\n|---|---|---|---|---|---|"
    )
    try:
        profile = load_profile(asked.profile)
        certain = Pool("on-demand", asked.usd[0])
        spot = [read_pool(each, asked.usd[1], asked.start_hour, asked.notice_s) for each in asked.spot]
        world = scenario(open_trace(asked.window), knobs=knobs, profile=profile, seed=asked.seed)
        warm = world.warm()
        kinds = [read_kind(each) for each in asked.kind]
        for name in asked.policies:
            policy = SkyServe(knobs) if name == "skyserve" else Mixed(knobs, name)
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
                bound = least_usd(policy.needs, own["ours"])
                print(f"| bound | | | {bound:.2f} | | |", flush=True)
    except TraceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
