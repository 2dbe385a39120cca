"""Times the parts of a decision, one after the other in every round."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from benchmarks.autoscaling_overhead.controller_state import ENGINE, Fleet, PeerFleet
from loadtests.columns import percentile
from serve_app.controller.contexts import engine_readings, ingress_readings
from serve_app.controller.sightings import Sightings
from serve_app.learning.next_decision import next_decision
from serve_app.learning.state import PolicyState
from serve_app.policy.snapshot import Snapshot
from serve_app.settings.knobs import Knobs
from serve_app.wire.names import INGRESS

T = TypeVar("T")

DECISIONS_PER_S = 2
CALLS_PER_S = 10
"""Ray's controller calls a policy ten times a second; ours decides in two of them."""

PARTS = {
    "decide": "`next_decision()`: snapshot to decision",
    "again": "the same once more, with warm caches",
    "adapter": "adapter: Ray's raw metrics to a snapshot",
    "collect": "Ray: reports to raw metrics, which the adapter needs",
    "call": "the whole turn of the controller: all of these, records and metrics",
    "between": "a turn in which our policy is not due",
    "peer": "peer: the whole turn under Ray Serve's default policy",
}


@dataclass(frozen=True, slots=True)
class Timing:
    """One part at one size, over the rounds. Seconds."""

    part: str
    replicas: int
    rounds: int
    median_s: float
    p95_s: float
    lowest_s: float


def measure(replicas: int, rounds: int, warm_up: int) -> list[Timing]:
    """Time every part `rounds` times with new reports each time, after `warm_up` rounds that do not count.

    Warm-up gives the policy a memory: demand, a fit, replicas it knows.
    """
    knobs = Knobs(min_replicas=1, max_replicas=10_000)
    fleet, peer = Fleet(replicas, knobs), PeerFleet(replicas)
    seen: dict[str, list[float]] = {part: [] for part in PARTS}
    state, clock = PolicyState(), time.time()
    reports = Sightings(), Sightings()
    for round_ in range(warm_up + rounds):
        # What an earlier round leaves behind is not for this one to clear up.
        gc.enable()
        gc.collect()
        gc.disable()
        fleet.report()
        peer.report()
        # The policy's time goes on by a second a round, however long a round takes.
        clock += 1.0
        times, state = _round(fleet, peer, reports, state, clock)
        if round_ >= warm_up:
            for part, seconds in times.items():
                seen[part].append(seconds)
    gc.enable()
    return [_timing(part, replicas, values) for part, values in seen.items()]


def share_of_a_core(timings: list[Timing]) -> dict[str, float]:
    """The share of a core that Ray's controller spends, at the rates it calls: ours, and the peer's."""
    median = {timing.part: timing.median_s for timing in timings}
    between = CALLS_PER_S - DECISIONS_PER_S
    return {
        "ours": DECISIONS_PER_S * median["call"] + between * median["between"],
        "peer": CALLS_PER_S * median["peer"],
    }


def _round(
    fleet: Fleet, peer: PeerFleet, reports: tuple[Sightings, Sightings], state: PolicyState, now: float
) -> tuple[dict[str, float], PolicyState]:
    engines, ingress = fleet.context(ENGINE), fleet.context(INGRESS)
    times: dict[str, float] = {}

    def collect() -> object:
        return engines.raw_metrics, ingress.raw_metrics

    times["collect"], _ = _timed(collect)
    times["adapter"], snapshot = _timed(partial(_snapshot, engines, ingress, reports))
    times["decide"], (_, remembered) = _timed(partial(next_decision, snapshot, fleet.knobs, state, now))
    times["again"], _ = _timed(partial(next_decision, snapshot, fleet.knobs, state, now))
    times["call"], _ = _timed(fleet.call)
    times["between"], _ = _timed(fleet.call_between)
    times["peer"], _ = _timed(peer.call)
    return times, remembered


def _snapshot(engines: Any, ingress: Any, reports: tuple[Sightings, Sightings]) -> Snapshot:
    now = time.time()
    return Snapshot(
        target=engines.target_num_replicas,
        ready=engines.current_num_replicas,
        ingress_ready=ingress.current_num_replicas,
        engines=engine_readings(engines.raw_metrics, now, reports[0]),
        ingress=ingress_readings(ingress.raw_metrics, ENGINE, now, reports[1]),
        cold_node_start_s=70.0,
    )


def _timed(part: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = part()
    return time.perf_counter() - start, result


def _timing(part: str, replicas: int, seconds: list[float]) -> Timing:
    ascending = sorted(seconds)
    return Timing(
        part, replicas, len(ascending), percentile(ascending, 0.5), percentile(ascending, 0.95), ascending[0]
    )
