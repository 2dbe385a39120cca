"""The reports about one model: sums of them for one decision, and counts for the policy's memory."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import hypot, inf, isfinite
from operator import attrgetter

from serve_app.policy.state import EngineTotals, IngressTotals, MixSums, PolicyState
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES, Percentile
from serve_app.wire.batches import NO_BATCHES, BatchBacklog
from serve_app.wire.quick_dataclass import quick_dataclass
from serve_app.wire.signals import ENGINE_FIELDS, INGRESS_FIELDS, EngineSignals, IngressSignals, Reading, S


@quick_dataclass(frozen=True, slots=True)
class Snapshot:
    """The replicas of one model and their reports. A replica without a report is absent from the mappings."""

    target: int
    """The target in force."""
    ready: int
    """Replicas that take requests."""
    ingress_ready: int = 1
    """Ingress replicas that take requests."""
    engines: Mapping[str, Reading[EngineSignals]] = field(default_factory=dict)
    ingress: Mapping[str, Reading[IngressSignals]] = field(default_factory=dict)
    draining: int = 0
    starting: int = 0
    """Requested replicas whose process is loading."""
    pending: int = 0
    """Requested replicas for which the cluster has no room yet."""
    pending_s: float = 0.0
    """Seconds for which at least one replica has been pending."""
    pending_reason: str = ""
    """The cluster's reason, if it gives one."""
    warm_node: bool = False
    """Whether a node whose zygote has imported vLLM has room for the next replica."""
    warm_node_start_s: float | None = None
    """Measured seconds from the start of a replica's process to its readiness, on a node with vLLM already
    imported; None before the first such start."""
    cold_node_start_s: float | None = None
    """The same on a node without vLLM imported, such as a new node."""
    batches: BatchBacklog = NO_BATCHES
    """What is left of the model's open batches."""
    clock_ahead_s: float = 0.0
    """How far the machine's clock is ahead of the policy's, which takes a step over slowly."""
    assumed_start_s: float = 60.0
    """The assumed seconds of a start until one has been measured."""
    running: int | None = None
    """Replicas that should report, if `ready` counts the work that variants do; None if it is the same."""

    @property
    def reporters(self) -> int:
        """The replicas that take requests, and should report."""
        return self.ready if self.running is None else self.running

    @property
    def cold_start_s(self) -> float | None:
        """The measured start on the next replica's kind of node, or on the other kind; None without any."""
        warm_s, cold_s = _if_measured(self.warm_node_start_s), _if_measured(self.cold_node_start_s)
        return (warm_s or cold_s) if self.warm_node else (cold_s or warm_s)

    @property
    def start_measured(self) -> bool:
        """Whether the measurements say how long the next start takes at most.

        A start on a warm node takes no longer than one on a cold node, but not the other way round.
        """
        known_s = self.cold_start_s if self.warm_node else _if_measured(self.cold_node_start_s)
        return known_s is not None

    @property
    def horizon_s(self) -> float:
        """The policy's planning horizon: the seconds that the next replica takes to start."""
        start_s = self.cold_start_s or 0.0
        return start_s if self.start_measured else max(start_s, self.assumed_start_s)


def _if_measured(start_s: float | None) -> float | None:
    return start_s if start_s is not None and 0 < start_s < inf else None


@quick_dataclass(frozen=True, slots=True)
class Latency:
    """One part of latency over the last 30 s, by replica, in seconds."""

    percents: tuple[int, ...]
    rows: tuple[tuple[float, ...], ...]
    """For each replica with observations: their number, then the percentiles."""
    count: float
    """Observations of all replicas."""

    def at(self, percentile: Percentile) -> float:
        """Return the mean of the replicas' percentiles, weighted by observations; 0 without observations."""
        column = 1 + self.percents.index(percentile)
        return sum([row[0] * row[column] for row in self.rows]) / self.count if self.rows else 0.0

    def share_above(self, limit_s: float) -> float:
        """Return the share of observations above `limit_s`, interpolated per replica.

        Means of percentiles would be wrong: if replicas differ, the means fit no replica.
        """
        percents, above = (0, *self.percents), 0.0
        for row in self.rows:
            if row[-1] > limit_s:
                index = bisect_right(row, limit_s, 1) - 1
                # Linear between two percentiles. Latencies below the lowest percentile start at 0 s.
                below, below_s = percents[index], row[index] if index else 0.0
                width_s = row[index + 1] - below_s
                part = (limit_s - below_s) / width_s if width_s > 0 else 0.0
                above += row[0] * (100.0 - below - part * (percents[index + 1] - below))
        # Bounded, because a report's percentiles may be out of order.
        return min(max(above / (100.0 * self.count), 0.0), 1.0) if self.rows else 0.0


@quick_dataclass(frozen=True, slots=True)
class Observation:
    """Sums over the fresh reports about one model at one moment."""

    running_requests: float
    running_tokens: float
    waiting_requests: float
    """Requests in engine queues."""
    waiting_tokens: float
    held_requests: float
    """Requests that ingress replicas queue for a cold start."""
    held_tokens: float
    oldest_held_s: float
    newest_held_s: float
    arrivals: float
    """Requests since the last decision."""
    kv_cache_tokens: float
    """The size of the KV cache of one replica, in tokens."""
    ttft_queue: Latency
    ttft_prefill: Latency
    itl: Latency
    unknown_engines: int
    """Ready replicas without a fresh report."""
    ingress_known: bool
    ages_s: dict[str, float]
    notes: tuple[str, ...]
    background_running_requests: float = 0.0
    """Of the lane `background`, which no field above includes."""
    background_waiting_requests: float = 0.0
    background_held_requests: float = 0.0
    background_tokens: float = 0.0
    """Prompt tokens of that lane that wait in engines or in the ingress."""

    tokens_per_byte: float = 0.0
    """Prompt tokens for each byte of a body."""

    @property
    def background_requests(self) -> float:
        """All requests of the lane `background`: in engines, and queued in the ingress."""
        in_engines = self.background_running_requests + self.background_waiting_requests
        return in_engines + self.background_held_requests

    @property
    def queued_requests(self) -> float:
        return self.waiting_requests + self.held_requests

    @property
    def queued_tokens(self) -> float:
        """Prompt tokens that wait in engines or in the ingress."""
        return self.waiting_tokens + self.held_tokens

    @property
    def idle(self) -> bool:
        """Whether the model has no work of a lane other than `background`.

        A model with silent replicas does not count as idle.
        """
        known = self.ingress_known and not self.unknown_engines
        return known and not (self.running_requests or self.queued_requests or self.arrivals)


# One call reads several fields, because reading is half the time of a decision about a hundred replicas.
_READ_ALL = {"engine": attrgetter(*ENGINE_FIELDS), "ingress": attrgetter(*INGRESS_FIELDS)}
_TOTALS = "finished_requests_total finished_prompt_tokens_total prompt_tokens_total"
_READ_TOTALS = attrgetter(*_TOTALS.split(), "finished_generation_tokens_total")
_READ_STEP = attrgetter("steps", "step_s", "step_batch", "step_kv_tokens", "step_prefill_tokens")
_QUEUES = "running_requests running_tokens waiting_requests waiting_tokens"
_READ_LOAD = attrgetter(*_QUEUES.split(), "ongoing_requests", "kv_cache_tokens")
_BACKGROUND = "running_requests waiting_requests waiting_tokens ongoing_requests"
_READ_BACKGROUND = attrgetter(*[f"background_{name}" for name in _BACKGROUND.split()])
_READ_LATENCY = {
    part: (attrgetter(count, *(f"{part}_p{p}_s" for p in percentiles)), percentiles)
    for part, count, percentiles in (
        ("ttft_queue", "ttft_count", PERCENTILES),
        ("ttft_prefill", "ttft_count", PERCENTILES),
        ("itl", "itl_count", ITL_PERCENTILES),
    )
}
_LARGEST = 1e15
"""A report with a larger number is refused, like a report with a number that is not finite."""


def _usable(readings: Mapping[str, Reading[S]], what: str, notes: list[str]) -> dict[str, S]:
    """Return the fresh and finite reports by source, and add a note for each other report."""
    usable = {}
    for source, reading in readings.items():
        if not reading.fresh:  # also if the age is NaN
            notes.append(f"{what} {source}: The report is {reading.age_s:.0f} s old, so it is not used.")
        # `hypot` is finite only if all numbers are, and takes a tenth of the time of checking each.
        elif not hypot(*_READ_ALL[what](reading.signals)) <= _LARGEST:
            notes.append(f"{what} {source}: The report has numbers that are not finite, so it is not used.")
        else:
            usable[source] = reading.signals
    return usable


def latency(engines: Sequence[EngineSignals], part: str) -> Latency:
    """Return `ttft_queue`, `ttft_prefill` or `itl` as `engines` report it."""
    read, percents = _READ_LATENCY[part]
    rows = tuple([row for row in map(read, engines) if row[0] > 0])
    return Latency(percents, rows, sum([row[0] for row in rows]))


def observe(
    snapshot: Snapshot, state: PolicyState, now: float, memory_s: float = 7200.0
) -> tuple[Observation, PolicyState]:
    """Sum up `snapshot`, and remember arrivals, the mix of requests and the engines' steps.

    The histogram of demand fades over `memory_s` seconds of traffic. `now` is Unix time in seconds.
    """
    notes: list[str] = []
    engines = _usable(snapshot.engines, "engine", notes)
    ingresses = _usable(snapshot.ingress, "ingress", notes)
    state, arrivals, finished = _count(snapshot, engines, ingresses, state, now, memory_s)

    running = running_tokens = waiting = waiting_tokens = kv_cache_tokens = 0.0
    background_running = background_waiting = background_tokens = 0.0
    for signals in engines.values():
        runs, runs_tokens, waits, waits_tokens, ongoing, cache = _READ_LOAD(signals)
        background = _READ_BACKGROUND(signals)
        if any(background):
            runs_back, waits_back, tokens_back, ongoing_back = (max(value, 0.0) for value in background)
            ongoing -= ongoing_back or runs_back + waits_back
            runs_back = max(runs_back, ongoing_back - waits_back)
            background_running += runs_back
            background_waiting += waits_back
            background_tokens += tokens_back
        # A request may be open on the data plane but not in the engine, or the other way round. Negative
        # numbers count as 0. `max` would take three times as long, five times per replica.
        runs = runs if runs > ongoing - waits else ongoing - waits
        running += runs if runs > 0.0 else 0.0
        running_tokens += runs_tokens if runs_tokens > 0.0 else 0.0
        waiting += waits if waits > 0.0 else 0.0
        waiting_tokens += waits_tokens if waits_tokens > 0.0 else 0.0
        kv_cache_tokens = cache if cache > kv_cache_tokens else kv_cache_tokens
    # A replica that has fallen silent counts with the mean load of the others. A replica that has never
    # reported is new and has no load.
    stand_in = max(min(len(snapshot.engines), snapshot.reporters) / len(engines), 1.0) if engines else 1.0
    held = held_bytes = oldest_held = background_held = background_bytes = 0.0
    newest_held = inf
    for seen in ingresses.values():
        held += max(seen.held_requests, 0.0)
        held_bytes += max(seen.held_bytes, 0.0)
        background_held += max(seen.background_held_requests, 0.0)
        background_bytes += max(seen.background_held_bytes, 0.0)
        oldest_held = max(oldest_held, seen.oldest_held_s)
        newest_held = min(newest_held, seen.newest_held_s if seen.held_requests > 0 else inf)
    reports = tuple(engines.values())
    observation = Observation(
        running_requests=running * stand_in,
        running_tokens=running_tokens * stand_in,
        waiting_requests=waiting,
        waiting_tokens=waiting_tokens,
        held_requests=held,
        held_tokens=held_bytes * state.sums.tokens_per_byte,
        oldest_held_s=oldest_held,
        newest_held_s=newest_held if held else 0.0,
        arrivals=arrivals,
        kv_cache_tokens=kv_cache_tokens or state.kv_cache_tokens,
        **{part: latency(reports, part) for part in _READ_LATENCY},
        unknown_engines=max(0, snapshot.reporters - len(engines)),
        ingress_known=bool(ingresses) and len(ingresses) >= snapshot.ingress_ready,
        ages_s={
            source: reading.age_s
            for readings in (snapshot.engines, snapshot.ingress)
            for source, reading in readings.items()
            if isfinite(reading.age_s)
        },
        notes=tuple(notes),
        background_running_requests=background_running,
        background_waiting_requests=background_waiting,
        background_held_requests=background_held,
        background_tokens=background_tokens + background_bytes * state.sums.tokens_per_byte,
        tokens_per_byte=state.sums.tokens_per_byte,
    )
    return observation, replace(
        state,
        since=_since(state.since, now),
        kv_cache_tokens=observation.kv_cache_tokens,
        idle_since=_since(state.idle_since, now) if observation.idle and not finished else None,
    )


def _since(begun: float | None, now: float) -> float:
    """Return `begun`, or `now` if nothing had begun or the clock has been set back."""
    return now if begun is None or begun > now else begun


def step_sample(signals: EngineSignals) -> tuple[float, float, float, float, float] | None:
    """Return the mean step of a report, for `StepTimeFit.learn`; None without a possible step."""
    steps, step_s, batch, kv_tokens, prefill_tokens = step = _READ_STEP(signals)
    # An impossible step would outweigh all other steps in the fit.
    possible = (
        0 < steps <= 10_000.0
        and 0 < step_s <= 60.0
        and 0 <= batch <= 10_000.0
        and 0 <= kv_tokens <= 1e8
        and 0 <= prefill_tokens <= 1e6
    )
    return step if possible else None


def _count(
    snapshot: Snapshot,
    engines: Mapping[str, EngineSignals],
    ingresses: Mapping[str, IngressSignals],
    state: PolicyState,
    now: float,
    memory_s: float,
) -> tuple[PolicyState, float, float]:
    """Return the updated memory, and the arrivals and finished requests since the last decision."""
    engine_totals = {
        source: state.engine_totals[source] for source in state.engine_totals if source in snapshot.engines
    }
    finished = prompt_tokens = computed_tokens = output_tokens = 0.0
    samples = []
    for source, signals in engines.items():
        requests, prompt, computed, output = _READ_TOTALS(signals)
        reported = round(now - snapshot.engines[source].age_s, 2)
        before = engine_totals.get(source)
        engine_totals[source] = EngineTotals(reported, requests, prompt, computed, output)
        # A replica without earlier totals is new, or back after a change of its `user_config`, during which
        # Ray does not report it. Counting its whole total as new would look like a burst.
        if before is not None:
            if -0.05 <= reported - before.reported_at <= 0.05:
                continue  # the same report as last time
            grown = requests - before.requests, prompt - before.prompt_tokens, output - before.output_tokens
            if min(grown) >= 0:
                finished += grown[0]
                prompt_tokens += grown[1]
                computed_tokens += max(computed - before.computed_tokens, 0.0)
                output_tokens += grown[2]
        if (step := step_sample(signals)) is not None:
            samples.append(step)
    ingress_totals = {
        source: state.ingress_totals[source] for source in state.ingress_totals if source in snapshot.ingress
    }
    arrivals = body_bytes = 0.0
    for source, seen in ingresses.items():
        start = ingress_totals.get(source, IngressTotals(seen.arrivals_total, seen.arrived_bytes_total))
        # A report may be followed by an older one: see `ColdReports` of the ingress.
        total = ingress_totals[source] = IngressTotals(
            max(start.arrivals, seen.arrivals_total), max(start.bytes, seen.arrived_bytes_total)
        )
        arrivals += total.arrivals - start.arrivals
        body_bytes += total.bytes - start.bytes
    new = MixSums(finished, prompt_tokens, computed_tokens, output_tokens, arrivals, body_bytes)
    demand = state.demand.add(now, arrivals, snapshot.horizon_s, memory_s) if ingresses else state.demand
    remembered = replace(
        state,
        demand=demand,
        service=state.service.learn(samples),
        sums=state.sums.add(new, state.elapsed_s(now)),
        engine_totals=engine_totals,
        ingress_totals=ingress_totals,
    )
    return remembered, arrivals, finished
