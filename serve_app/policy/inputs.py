"""The inputs of a decision about one model: its replicas and their reports, sums, and learned numbers."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from serve_app.policy.capacity_model import MOST_REPLICAS, Sizing
from serve_app.settings.knobs import Knobs, Percentile
from serve_app.wire.batch_backlog import NO_BATCHES, BatchBacklog
from serve_app.wire.signals import EngineSignals, IngressSignals, Reading


@dataclass(frozen=True, slots=True)
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


_STARTS_IN_WINDOW = 4.0
_SHORTEST_WINDOW_S = 10.0
_LONGEST_WINDOW_S = 60.0
"""With starts of 75 s, windows of 90, 180 and 300 s were no better: `docs/measurements.md`."""
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
        """Requests that wait in engines or in the ingress."""
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


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The requests that arrive, per second."""

    rps: float
    """The higher of the rates over the window and over half of the window."""
    over_s: float
    """The seconds over which `rps` was measured."""
    window_s: float
    """The length of the window: about one start."""
    weighted_rps: float
    """The rate over the window, weighted by requests: requests in clumps wait for each other."""
    last_30s_rps: float
    last_60s_rps: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """The demand to allow for until a new replica is ready, in requests per second."""

    rps: float
    quantile: float
    """The quantile of past requests for `rise` and `most`."""
    rise: float
    """The rise of demand at the quantile."""
    alike: bool
    """Whether `rise` is the rise from a similar demand. If not, it is the rise from any demand."""
    most: float
    """The demand at the quantile."""
    unsure_rps: float
    """The part of `rps` that is added because little traffic has been observed."""
    known_minutes: float


def scale_down_window_s(knobs: Knobs, start_s: float) -> float:
    """Return the scale-down window: `downscale_delay_s`, or four starts within 10 to 60 s.

    Keeping a replica for less than a start costs less than starting it again. The window is four starts,
    because a start also costs late requests.
    """
    given = knobs.downscale_delay_s
    window_s = min(max(_STARTS_IN_WINDOW * start_s, _SHORTEST_WINDOW_S), _LONGEST_WINDOW_S)
    return given if given is not None else window_s


@dataclass(frozen=True, slots=True)
class Need:
    """The replicas that the load needed at `at`."""

    at: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """One model at `now`, Unix time in seconds."""

    snapshot: Snapshot
    knobs: Knobs
    now: float
    seen: Observation
    ttft_missed: float
    """Share of requests that waited too long in an engine's queue. The limit is the TTFT target minus the
    prefill, or half a prefill if that is more."""
    itl_missed: float
    """Share of inter-token latencies above `Feasibility.itl_limit_s`."""
    sizing: Sizing
    steps_learned: float
    """The number of steps behind `sizing`; 0 if only a prior is."""
    interference: float
    """Measured late tokens divided by expected late tokens."""
    arrivals: Arrivals
    forecast: Forecast | None
    """None if the knobs switch the forecast off."""
    standing_requests: float
    """The shortest queue within `upscale_delay_s`: requests that the present replicas do not clear."""
    standing_tokens: float
    waking_s: float
    """Seconds for which replicas have been starting with none ready."""
    idle_s: float | None
    """Seconds for which the model has been idle; None if it is not idle."""
    observed_s: float
    """Seconds for which the policy has observed the model since a start or a loss of memory."""
    rise_s: float
    """Seconds of traffic that the forecast needs before it can see a rise; 0 without a forecast."""
    recent_needs: tuple[Need, ...]
    """Falling maxima: each entry is the largest need of the load since its time."""
    background_for_s: float | None = None
    """Seconds for which the lane `background` has had work; None without work. A pause shorter than the
    scale-down window counts as work."""

    @property
    def current(self) -> int:
        """The target in force, within the bounds."""
        return min(max(self.snapshot.target, self.knobs.min_replicas), self.knobs.max_replicas)

    @property
    def background_hours_open(self) -> bool:
        """Whether background work may start or add replicas at this time of the week."""
        hours = self.knobs.background_hours
        return not hours or any(window.covers(self.unix_now) for window in hours)

    @property
    def unix_now(self) -> float:
        """The time of the machine's clock."""
        return self.now + self.snapshot.clock_ahead_s

    @property
    def background_has_replica(self) -> bool:
        """Whether knobs let background work have a replica of its own, however long the model is idle."""
        knobs = self.knobs
        if self.background_for_s is None or not self.background_hours_open:
            return False
        if not self.snapshot.target:
            return knobs.background_wakes and self.seen.background_requests > 0
        return knobs.background_wakes or knobs.background_backlog_s is not None

    @property
    def expected_rps(self) -> float:
        """The requests per second to size the fleet for."""
        return max(self.arrivals.rps, self.forecast.rps if self.forecast is not None else 0.0)

    @property
    def most_for_queue(self) -> int:
        """The most replicas that a queue may ask for: while replicas start, the present target.

        While replicas start, the queue grows. More replicas would come when the starting ones have cleared
        the queue. At 1 request/s and a start of 60 s, 60 queued requests would have asked for eight replicas
        where one is enough. The demand term has no such limit.
        """
        snapshot = self.snapshot
        waking = self.waking_s > self.knobs.upscale_delay_s
        starting = 0 < snapshot.ready < snapshot.target
        return snapshot.target if waking or starting else MOST_REPLICAS

    @property
    def scale_down_window_s(self) -> float:
        """The scale-down window in seconds; see `scale_down_window_s`."""
        return scale_down_window_s(self.knobs, self.snapshot.horizon_s)

    @property
    def unobserved_s(self) -> float:
        """Seconds for which the policy must still observe the model before it removes a replica.

        A short lull says nothing about traffic that the policy has not observed. The policy must first see
        how much demand rises while a replica starts.
        """
        longest_s = max(self.scale_down_window_s, self.knobs.downscale_to_zero_delay_s, self.rise_s)
        return longest_s - self.observed_s

    @property
    def silent(self) -> bool:
        """Whether too many replicas are silent to remove one: an ingress replica, or most engine replicas.

        Fewer silent engine replicas count with the mean load of the others: see `observe`.
        """
        return 2 * self.seen.unknown_engines > self.snapshot.ready or not self.seen.ingress_known

    def cautious_replicas(self, rps: float) -> int:
        """Return the replicas for `rps` plus two standard errors; a scale-down keeps at least these.

        The standard error of Poisson arrivals is the square root of their number. Without it a steady 12
        requests/s, measured as 11.1 to 12.9, removed and added a replica 22 times an hour.
        """
        error = math.sqrt(self.arrivals.rps / self.arrivals.window_s)
        return self.sizing.replicas(rps + _STANDARD_ERRORS * error)

    def cautious_rps(self, replicas: int) -> float:
        """Return the rate below which `replicas` are enough: the inverse of `cautious_replicas`."""
        half = _STANDARD_ERRORS / 2 / math.sqrt(self.arrivals.window_s)
        root = math.sqrt(self.sizing.most_rps(replicas) + half * half) - half
        return root * root
