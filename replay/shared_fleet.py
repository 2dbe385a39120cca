"""Replays of several models on one fleet with fewer places than models: who has a place, and who waits.

`simulate_shared` moves one simulated fleet per model through time. The fleets share `places`, each the room
of one replica. A policy sets the targets of all models. `Sharing` calls the same function as the controller.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Protocol

import numpy as np

from replay.defaults import KNOBS
from replay.fleet import layout
from replay.fleet.conditions import Conditions
from replay.fleet.fleet import Fleet
from replay.production import Production
from replay.profile import Profile, load_profile
from serve_app.policy.fleet_members import Member, Replica
from serve_app.policy.fleet_share import SharingState, share
from serve_app.settings.knobs import Knobs
from serve_app.wire.resources import Node
from traces import open_trace
from traces.file_trace import open_models
from traces.trace import Chunk, Trace, TraceError

TICK_S = 0.5
_TAIL_S = 900.0
"""How long a replay goes on after the last arrival; later first tokens do not come."""
_TICKS, _IDLE_TICKS = 2, 10
"""Ticks between two decisions about a model; the second for a model at zero without any request."""
_NODE = "node"
_PLACE = {"GPU": 1.0}

Fleets = Mapping[str, Fleet]


class SharedPolicy(Protocol):
    """Sets the targets of all models."""

    @property
    def name(self) -> str: ...

    def step(self, fleets: Fleets, places: int) -> None:
        """Set targets with `Fleet.set_target`."""
        ...


class Own:
    """Each model's own policy. A place that is free goes to the first replica that was asked for."""

    name = "first come, first served"

    def __init__(self, models: Sequence[str], knobs: Knobs) -> None:
        self._knobs = knobs
        self._policies = {model: Production(knobs) for model in models}
        self._targets = dict.fromkeys(models, 0)
        self._ticks = 0

    def step(self, fleets: Fleets, places: int) -> None:
        for model, target in self._own_targets(fleets).items():
            fleets[model].set_target(target)

    def _own_targets(self, fleets: Fleets) -> dict[str, int]:
        self._ticks += 1
        for number, (model, fleet) in enumerate(fleets.items()):
            at_zero = not fleet.target and not fleet.open_requests and not self._targets[model]
            if not (self._ticks + number) % (_IDLE_TICKS if at_zero else _TICKS):
                self._targets[model] = min(self._policies[model].step(fleet), self._knobs.max_replicas)
        return self._targets


class Sharing(Own):
    """Each model's own policy, and places shared by need."""

    name = "ours"

    def __init__(self, models: Sequence[str], knobs: Knobs) -> None:
        super().__init__(models, knobs)
        self._state = SharingState()

    def step(self, fleets: Fleets, places: int) -> None:
        targets, now = self._own_targets(fleets), next(iter(fleets.values())).now
        members = [self._member(model, fleet, targets[model]) for model, fleet in fleets.items()]
        node = Node({"GPU": float(places)}, {"GPU": float(places - used(fleets))}, _NODE)
        grants, self._state = share(members, [node], self._state, now)
        for model, grant in grants.items():
            first = {int(name.rpartition(":")[2]) for name in grant.stop}
            fleets[model].set_target(grant.target, first)

    def _member(self, model: str, fleet: Fleet, wanted: int) -> Member:
        decision, knobs = self._policies[model].decision, self._knobs
        signals = decision.signals if decision is not None else {}
        ready = {slot: fleet.names[slot] for slot in fleet.ready_slots}
        draining = [number for slot, number in fleet.names.items() if slot not in ready]
        claim = decision.claim if decision is not None and wanted else None
        replicas = [Replica(f"{model}:{n}", _NODE, fleet.ready_for_s(slot)) for slot, n in ready.items()]
        replicas += [Replica(f"{model}:{start.number}", _NODE) for start in fleet.starting.values()]
        return Member(
            key=model,
            name=model,
            wanted=wanted,
            claim=claim.replicas if claim is not None else 0,
            minimum=knobs.min_replicas,
            need=_PLACE,
            start_s=claim.start_s if claim is not None else sum(fleet.conditions.cold_start_s) / 2,
            target=fleet.target,
            replicas=tuple(replicas),
            draining=tuple(Replica(f"{model}:{number}", _NODE) for number in draining),
            waiting=signals.get("waiting_requests", 0.0) + signals.get("held_requests", 0.0),
            running=signals.get("running_requests", 0.0),
            rps=max(signals.get("arrivals_30s_rps", 0.0), signals.get("arrivals_60s_rps", 0.0)),
            capacity_rps=signals.get("replica_capacity_rps", 1.0),
            idle_s=claim.idle_s if claim is not None else 0.0,
            weight=knobs.share_weight,
            turn_s=knobs.turn_s,
            silent=claim is None or claim.silent,
        )


class LeastRecentlyUsed:
    """One replica per model. A model that needs a place ends the idle model whose last request is the oldest.

    So do Ollama and llama-swap: a model whose requests run is not ended, and nothing ends without a need.
    """

    name = "least recently used"

    def __init__(self) -> None:
        self._used_at: dict[str, float] = {}
        self._waiting: list[str] = []

    def step(self, fleets: Fleets, places: int) -> None:
        for model, fleet in fleets.items():
            if fleet.open_requests:
                self._used_at[model] = fleet.now
                if not fleet.target and model not in self._waiting:
                    self._waiting.append(model)
        for model in list(self._waiting):
            loaded = [name for name, fleet in fleets.items() if fleet.target]
            if len(loaded) >= places:
                idle = [name for name in loaded if fleets[name].ready and not fleets[name].open_requests]
                if not idle:
                    return
                fleets[min(idle, key=lambda name: self._used_at[name])].set_target(0)
            fleets[model].set_target(1)
            self._waiting.remove(model)


class StaticPlaces:
    """The models with the most requests have a replica each, all of the time; the others have none."""

    name = "own GPUs"

    def __init__(self, popular: Sequence[str]) -> None:
        self._popular = popular

    def step(self, fleets: Fleets, places: int) -> None:
        for model in self._popular[:places]:
            fleets[model].set_target(1)


@dataclass(frozen=True, slots=True)
class SharedResult:
    """What all models' clients saw, and what it cost."""

    policy: str
    requests: int
    in_time: int
    """Requests with a first token within the target."""
    p99_wait_s: float
    """The P99 of the time to first token; infinite if more requests than that had none."""
    unanswered: int
    starts: int
    gpu_seconds: float


def used(fleets: Fleets) -> int:
    """Return the places that starting, ready and draining replicas have."""
    return sum(len(fleet.names) + len(fleet.starting) for fleet in fleets.values())


def simulate_shared(
    traces: Mapping[str, Trace], policy: SharedPolicy, places: int, profile: Profile, conditions: Conditions
) -> SharedResult:
    """Run `policy` for the models of `traces` on `places`. Raises TraceError for an invalid trace."""
    fleets = {
        model: Fleet(profile, replace(conditions, capacity=0, seed=conditions.seed + index))
        for index, model in enumerate(traces)
    }
    feeds = {model: _Feed(trace) for model, trace in traces.items()}
    end, now = inf, 0.0
    while now < end and (not feeds_done(feeds) or any(fleet.open_requests for fleet in fleets.values())):
        now += TICK_S
        for model, fleet in fleets.items():
            feeds[model].into(fleet, now)
            fleet.conditions = replace(fleet.conditions, capacity=0)
            fleet.settle()
        policy.step(fleets, places)
        _give_places(fleets, places)
        if feeds_done(feeds) and end == inf:
            end = now + _TAIL_S
    for fleet in fleets.values():
        fleet.end()
    histograms = [fleet.memory.histograms for fleet in fleets.values()]
    requests = sum(int(fleet.memory.totals["arrivals"][0]) for fleet in fleets.values())
    answered = sum(int(fleet.memory.totals["first_tokens"][0]) for fleet in fleets.values())
    below = np.cumsum(sum(each[layout.TTFT] + each[layout.TTFT_COLD] for each in histograms))
    index = int(np.searchsorted(below, 0.99 * requests))
    return SharedResult(
        policy=policy.name,
        requests=requests,
        in_time=sum(int(fleet.memory.windows["ttft_ok"].sum()) for fleet in fleets.values()),
        p99_wait_s=float(layout.SHORTEST_S * layout.RATIO ** (index + 0.5)) if index < len(below) else inf,
        unanswered=requests - answered,
        starts=sum(fleet.starts for fleet in fleets.values()),
        gpu_seconds=sum(fleet.gpu_seconds().total for fleet in fleets.values()),
    )


class _Feed:
    """Hands one model's requests to its fleet."""

    def __init__(self, trace: Trace) -> None:
        self._chunks = trace.chunks()
        self.chunk: Chunk | None = next(self._chunks, None)
        self._at = 0

    def into(self, fleet: Fleet, until: float) -> None:
        while self.chunk is not None:
            self._at = fleet.take(self.chunk, self._at, until)
            if self._at < len(self.chunk):
                break
            self.chunk, self._at = next(self._chunks, None), 0
        fleet.advance(until)


def feeds_done(feeds: Mapping[str, _Feed]) -> bool:
    """Whether no model has more requests to come."""
    return all(feed.chunk is None for feed in feeds.values())


def _give_places(fleets: Fleets, places: int) -> None:
    """Start pending replicas where there is room, in the order in which they were asked for."""
    free = places - used(fleets)
    waiting = sorted((at, model) for model, fleet in fleets.items() for at in fleet.pending)
    for _, model in waiting[: max(free, 0)]:
        fleet = fleets[model]
        fleet.conditions = replace(fleet.conditions, capacity=len(fleet.names) + len(fleet.starting) + 1)
        fleet.set_target(fleet.target)


def read_models(arguments: Sequence[str]) -> dict[str, Trace]:
    """Return the traces by model. Each argument is `MODEL=FILE`, or a request log that names its models.

    Raises TraceError for a file that cannot be replayed.
    """
    found: dict[str, Trace] = {}
    for argument in arguments:
        model, _, file = argument.rpartition("=")
        found |= {model: open_trace(Path(file))} if model else open_models(file)
    return found


def popular(traces: Mapping[str, Trace]) -> list[str]:
    """Return the models, the one with the most requests first."""
    counts = {model: sum(map(len, trace.chunks())) for model, trace in traces.items()}
    return sorted(counts, key=lambda model: -counts[model])


def policies(traces: Mapping[str, Trace], knobs: Knobs) -> list[SharedPolicy]:
    """Return ours and the baselines, with fresh memory."""
    models = list(traces)
    return [Sharing(models, knobs), Own(models, knobs), LeastRecentlyUsed(), StaticPlaces(popular(traces))]


def table(results: Sequence[SharedResult]) -> list[str]:
    """Return the rows of a Markdown table."""
    rows = [
        "| policy | requests in time | P99 wait | no answer | starts | GPU-hours |",
        "|---|---|---|---|---|---|",
    ]
    for each in results:
        wait = "none" if each.p99_wait_s == inf else f"{each.p99_wait_s:,.0f} s"
        share_in_time = f"{each.in_time / max(each.requests, 1):.1%}"
        rows.append(
            f"| {each.policy} | {share_in_time} | {wait} | {each.unanswered / max(each.requests, 1):.1%} | "
            f"{each.starts:,} | {each.gpu_seconds / 3600:.1f} |"
        )
    return rows


def main() -> int:
    """Replay several models on one fleet, from the command line."""
    parser = argparse.ArgumentParser(prog="python -m replay.shared_fleet", description=main.__doc__)
    parser.add_argument(
        "models", nargs="+", metavar="[MODEL=]FILE", help="a trace of MODEL, or a request log of several"
    )
    parser.add_argument("--places", type=int, required=True, help="replicas that the fleet has room for")
    parser.add_argument("--profile", default="a100-80gb", help="the hardware of a replica")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    try:
        traces, profile = read_models(asked.models), load_profile(asked.profile)
        conditions = conditions_of(KNOBS, profile, asked.seed)
        results = [
            simulate_shared(traces, policy, asked.places, profile, conditions)
            for policy in policies(traces, KNOBS)
        ]
    except TraceError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(table(results)))
    return 0


def conditions_of(knobs: Knobs, profile: Profile, seed: int) -> Conditions:
    """Return the conditions of a replay."""
    return Conditions(
        knobs.ttft_target_s,
        knobs.itl_target_s,
        profile.cold_start_s,
        seed=seed,
        drain_move_after_s=knobs.drain_move_after_s,
        max_held=knobs.max_held_requests,
    )


if __name__ == "__main__":
    sys.exit(main())
