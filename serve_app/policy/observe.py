"""From a snapshot to sums, and from the sums to what is remembered of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, isfinite
from operator import attrgetter
from typing import Literal

from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES, Percentile
from serve_app.wire.signals import EngineSignals, IngressSignals, Reading, Snapshot

# One call reads several fields: half the time of a hundred replicas' decision is reading.
_READ_TOTALS = attrgetter(
    "finished_requests_total",
    "finished_prompt_tokens_total",
    "prompt_tokens_total",
    "finished_generation_tokens_total",
)
_READ_STEP = attrgetter("steps", "step_s", "step_batch", "step_kv_tokens", "step_prefill_tokens")
_LOAD = attrgetter(
    "running_requests",
    "running_tokens",
    "waiting_requests",
    "waiting_tokens",
    "ongoing_requests",
    "kv_cache_tokens",
)
_LARGEST = 1e15
"""A number beyond this is as little a report as one that is not finite."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One model at one moment, over all replicas whose reports are fresh."""

    running_requests: float
    running_tokens: float
    waiting_requests: float
    """In engine queues."""
    waiting_tokens: float
    held_requests: float
    """In ingress replicas, for a cold start."""
    held_tokens: float
    oldest_held_s: float
    arrivals: float
    """Requests since the last decision."""
    kv_cache_tokens: float
    """Of one replica."""
    unknown_engines: int
    """Ready replicas that are silent: absent or stale."""
    ingress_known: bool
    ages_s: dict[str, float]
    notes: tuple[str, ...]
    engines: tuple[EngineSignals, ...]
    """The reports to believe."""

    @property
    def queued_requests(self) -> float:
        """Waiting anywhere."""
        return self.waiting_requests + self.held_requests

    @property
    def queued_tokens(self) -> float:
        """Prompt tokens waiting anywhere."""
        return self.waiting_tokens + self.held_tokens

    @property
    def idle(self) -> bool:
        """Known to have nothing to do. Not knowing is not idle."""
        known = self.ingress_known and not self.unknown_engines
        return known and not (self.running_requests or self.queued_requests or self.arrivals)


def _usable(
    readings: Mapping[str, Reading[EngineSignals]] | Mapping[str, Reading[IngressSignals]],
    names: tuple[str, ...],
    what: str,
    notes: list[str],
) -> list[str]:
    """The sources to believe: fresh, and with finite numbers throughout."""
    usable = []
    values = attrgetter(*names)
    for source, reading in readings.items():
        if not reading.fresh:  # also what an age of NaN comes to
            notes.append(f"{what} {source}: its report is stale ({reading.age_s:.0f} s old)")
            continue
        # The root of the sum of squares: not finite unless all are, and a tenth of the time of asking each.
        if not hypot(*values(reading.signals)) <= _LARGEST:
            notes.append(f"{what} {source}: its report has numbers that are not finite")
            continue
        usable.append(source)
    return usable


def observe(
    snapshot: Snapshot, state: PolicyState, now: float, memory_s: float = 7200.0
) -> tuple[Observation, PolicyState]:
    """Sum up `snapshot`, and remember arrivals, the mix of requests and the steps engines took.

    Args:
        snapshot: What replicas report.
        state: From the last decision.
        now: Unix time, seconds.
        memory_s: Seconds of traffic over which the memory of peaks fades.
    """
    notes: list[str] = []
    engines = _usable(snapshot.engines, EngineSignals.__slots__, "engine", notes)
    ingresses = _usable(snapshot.ingress, IngressSignals.__slots__, "ingress", notes)
    state, arrivals, finished = _count(snapshot, engines, ingresses, state, now, memory_s)

    running = running_tokens = waiting = waiting_tokens = kv_cache_tokens = 0.0
    for source in engines:
        runs, runs_tokens, waits, waits_tokens, ongoing, cache = _LOAD(snapshot.engines[source].signals)
        # A request may be open on the data plane and not in the engine yet, or the other way round. What is
        # negative counts as nothing; `max` would take three times as long, five times for each replica.
        runs = runs if runs > ongoing - waits else ongoing - waits
        running += runs if runs > 0.0 else 0.0
        running_tokens += runs_tokens if runs_tokens > 0.0 else 0.0
        waiting += waits if waits > 0.0 else 0.0
        waiting_tokens += waits_tokens if waits_tokens > 0.0 else 0.0
        kv_cache_tokens = cache if cache > kv_cache_tokens else kv_cache_tokens
    held = held_bytes = oldest_held = 0.0
    for source in ingresses:
        seen = snapshot.ingress[source].signals
        held += max(seen.held_requests, 0.0)
        held_bytes += max(seen.held_bytes, 0.0)
        oldest_held = max(oldest_held, seen.oldest_held_s)
    observation = Observation(
        running_requests=running,
        running_tokens=running_tokens,
        waiting_requests=waiting,
        waiting_tokens=waiting_tokens,
        held_requests=held,
        held_tokens=held_bytes * state.sums.tokens_per_byte,
        oldest_held_s=oldest_held,
        arrivals=arrivals,
        kv_cache_tokens=kv_cache_tokens or state.kv_cache_tokens,
        unknown_engines=max(0, snapshot.ready - len(engines)),
        ingress_known=bool(ingresses) and len(ingresses) >= snapshot.ingress_ready,
        ages_s={
            source: reading.age_s
            for readings in (snapshot.engines, snapshot.ingress)
            for source, reading in readings.items()
            if isfinite(reading.age_s)
        },
        notes=tuple(notes),
        engines=tuple([snapshot.engines[source].signals for source in engines]),
    )
    idle_since = state.idle_since
    if not observation.idle or finished:
        idle_since = None
    elif idle_since is None or idle_since > now:
        idle_since = now
    return observation, replace(
        state,
        since=now if state.since is None or state.since > now else state.since,
        kv_cache_tokens=observation.kv_cache_tokens,
        idle_since=idle_since,
    )


def _count(
    snapshot: Snapshot,
    engines: list[str],
    ingresses: list[str],
    state: PolicyState,
    now: float,
    memory_s: float,
) -> tuple[PolicyState, float, float]:
    """What happened since the last decision, from the totals replicas report."""
    engine_totals = dict(state.engine_totals)
    finished = prompt_tokens = computed_tokens = output_tokens = 0.0
    samples = []
    for source in engines:
        reading = snapshot.engines[source]
        signals = reading.signals
        requests, prompt, computed, output = _READ_TOTALS(signals)
        reported = round(now - reading.age_s, 2)
        before = engine_totals.get(source)
        engine_totals[source] = (reported, requests, prompt, computed, output)
        if before is not None:
            then, requests_then, prompt_then, computed_then, output_then = before
            if -0.05 <= reported - then <= 0.05:
                continue  # the report of last time
            if requests >= requests_then and prompt >= prompt_then and output >= output_then:
                finished += requests - requests_then
                prompt_tokens += prompt - prompt_then
                computed_tokens += max(computed - computed_then, 0.0)
                output_tokens += output - output_then
        # else its past is unknown: new, or back from a change of its `user_config`, while which Ray does
        # not count it as running. To count all it ever did as of now would look like a torrent.
        steps, step_s, batch, kv_tokens, prefill_tokens = step = _READ_STEP(signals)
        # One report beyond what a step can be would outweigh all others in the fit.
        if (
            0 < steps <= 10_000.0
            and 0 < step_s <= 60.0
            and 0 <= batch <= 10_000.0
            and 0 <= kv_tokens <= 1e8
            and 0 <= prefill_tokens <= 1e6
        ):
            samples.append(step)
    ingress_totals = dict(state.ingress_totals)
    arrivals = body_bytes = 0.0
    for source in ingresses:
        seen = snapshot.ingress[source].signals
        counted = (seen.arrivals_total, seen.arrived_bytes_total)
        start = ingress_totals.get(source, counted)
        ingress_totals[source] = counted
        arrivals += max(0.0, counted[0] - start[0])
        body_bytes += max(0.0, counted[1] - start[1])
    sums = state.sums.add(finished, prompt_tokens, computed_tokens, output_tokens, arrivals, body_bytes)
    remembered = replace(
        state,
        demand=state.demand.add(
            now, arrivals, body_bytes * sums.tokens_per_byte, snapshot.horizon_s, memory_s
        )
        if ingresses
        else state.demand,
        service=state.service.learn(samples),
        sums=sums,
        engine_totals={
            source: totals for source, totals in engine_totals.items() if source in snapshot.engines
        },
        ingress_totals={
            source: totals for source, totals in ingress_totals.items() if source in snapshot.ingress
        },
    )
    return remembered, arrivals, finished


@dataclass(frozen=True, slots=True)
class Latency:
    """One part of latency over the last 30 s, by replica. Seconds."""

    percents: tuple[int, ...]
    rows: tuple[tuple[float, ...], ...]
    """Of each replica that has observed any: how many, and its percentiles."""
    count: float
    """Of all of them."""

    def at(self, percentile: Percentile) -> float:
        """The mean of the replicas' percentiles, weighted by how much each observed; 0 if none did."""
        column = 1 + self.percents.index(percentile)
        return sum([row[0] * row[column] for row in self.rows]) / self.count if self.rows else 0.0

    def share_above(self, limit_s: float) -> float:
        """The share of observations above `limit_s`: of each replica, read off between its percentiles.

        Not off the mean percentiles: where latencies come in two kinds they are of neither.
        """
        if not self.rows:
            return 0.0
        percents, above = (0, *self.percents), 0.0
        for row in self.rows:
            if row[-1] > limit_s:
                index = bisect_right(row, limit_s, 1) - 1
                # Linear between two percentiles; the lowest is taken to start at 0 s.
                below, below_s = percents[index], row[index] if index else 0.0
                width_s = row[index + 1] - below_s
                part = (limit_s - below_s) / width_s if width_s > 0 else 0.0
                above += row[0] * (100.0 - below - part * (percents[index + 1] - below))
        # A report whose percentiles are out of order must not come to more than all, or less than none.
        return min(max(above / (100.0 * self.count), 0.0), 1.0)


_PARTS = (
    ("ttft_queue", "ttft_count", PERCENTILES),
    ("ttft_prefill", "ttft_count", PERCENTILES),
    ("itl", "itl_count", ITL_PERCENTILES),
)
_READERS = {
    part: (attrgetter(count, *(f"{part}_p{p}_s" for p in percentiles)), percentiles)
    for part, count, percentiles in _PARTS
}


def latency(engines: Sequence[EngineSignals], part: Literal["ttft_queue", "ttft_prefill", "itl"]) -> Latency:
    """One part of latency as `engines` report it."""
    read, percents = _READERS[part]
    rows = tuple([row for row in map(read, engines) if row[0] > 0])
    return Latency(percents, rows, sum([row[0] for row in rows]))
