"""The result of one replay: plain data, and how it is read off the counters of the simulated fleet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay.fleet import layout
from traces.backlog import Backlog
from traces.trace import Floats

if TYPE_CHECKING:
    from replay.fleet.fleet import Fleet, GpuSeconds

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
_MOST_POINTS = 2_000
_FIRST_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """One latency over the whole replay: count, mean, and the value at each of `PERCENTILES`, in seconds."""

    count: float
    mean_s: float
    at_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Windows:
    """One-minute windows: one element each, by the minute a request arrived or a token came."""

    requests: Floats
    ttft_ok: Floats
    """Requests with a first token within the target."""
    cold: Floats
    """Requests that were queued for a cold start."""
    rejected: Floats
    ttft_p95_s: Floats
    itl_p95_s: Floats
    """0 if no token followed another."""
    itl_ok_share: Floats
    attained: Floats
    """1 if both percentiles were within their targets or no request arrived, otherwise 0."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The fleet every `interval_s`, at most 2,000 times."""

    interval_s: float
    at_s: Floats
    arrivals_rps: Floats
    wanted: Floats
    """Replicas the policy would ask for without delays and limits; the target if it does not say."""
    target: Floats
    ready: Floats
    starting: Floats
    draining: Floats
    queued: Floats
    """Queued for a cold start and waiting in engines."""
    held: Floats
    """Queued for a cold start."""


@dataclass(frozen=True, slots=True)
class LaneResult:
    """The requests of one lane."""

    lane: str
    requests: int
    ttft: Percentiles
    ttft_ok: float | None = None
    """Share of requests within the TTFT target, and `attainment` as `Result` has it, but of this lane's
    requests. None for `background`, which has no target."""
    attainment: float | None = None


@dataclass(frozen=True, slots=True)
class BackgroundResult:
    """The work of the lane `background`, which no other figure of a result includes."""

    requests: int
    tokens: int
    """Prompts and answers."""
    finished: int
    refused: int
    """Requests that no KV cache can hold."""
    finished_at_s: float
    """When the last finished request ended, in seconds since the start of the replay."""
    late: int
    """Requests that were unfinished at the deadline of their backlog."""


@dataclass(frozen=True, slots=True)
class Result:
    """One policy on one trace."""

    policy: str
    trace: str
    profile: str
    seed: int
    duration_s: float
    requests: int
    rejected: int
    ttft_target_s: float
    itl_target_s: float
    percentile: float
    attainment: float
    """Request-weighted share of one-minute windows with TTFT and ITL at the percentile within the targets."""
    attainment_warm: float
    """`attainment` without the requests that were queued for a cold start."""
    ttft_ok: float
    """Share of requests within the TTFT target."""
    ttft_ok_warm: float
    infeasible: float
    """Share of requests whose TTFT on an empty replica already misses the target."""
    ttft: Percentiles
    ttft_warm: Percentiles
    ttft_cold: Percentiles
    """TTFT of requests that were queued for a cold start."""
    itl: Percentiles
    e2e: Percentiles
    gpu_seconds: GpuSeconds
    price_per_gpu_hour: float
    starts: int
    failed_starts: int
    peak: int
    """Most replicas paid for at one time."""
    changes: int
    """Changes of the target."""
    preemptions: int
    cached_share: float
    """Share of the prompt tokens found in prefix caches; 0 for a trace without prefix blocks."""
    moves: int
    """Moves of streams from draining replicas to others."""
    adapter_requests: int
    """Requests for LoRA adapters, in all lanes."""
    adapter_hits: float
    """Share of these that came to a replica with their adapter loaded; 0 without any."""
    windows: Windows
    timeline: Timeline
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """The production policy's changes, in the format of `/autoscaling/decisions`; else empty."""
    wall_s: float = 0.0
    oracle_gpu_seconds: float | None = None
    peers: dict[str, dict[str, float]] = field(default_factory=dict)
    """Figures of other policies on the same trace, by policy: gpu_seconds, attainment, ttft_ok and so on."""
    knobs: dict[str, Any] = field(default_factory=dict)
    """The settings of the policy, by name."""
    unanswered: int = 0
    """Requests that had no token when the replay ended; they count as misses."""
    policy_errors: int = 0
    """Decisions of the policy that raised an error; the target was kept."""
    lanes: tuple[LaneResult, ...] = ()
    """By lane, the highest priority first; empty if there is only one."""
    background: BackgroundResult | None = None
    """None without requests of the lane `background`."""

    @property
    def oracle_ratio(self) -> float | None:
        """GPU-seconds over the oracle's."""
        if not self.oracle_gpu_seconds:
            return None
        return self.gpu_seconds.total / self.oracle_gpu_seconds

    def summary(self) -> dict[str, float]:
        """The figures that a comparison of policies shows."""
        return {
            "gpu_seconds": self.gpu_seconds.total,
            "attainment": self.attainment,
            "ttft_ok": self.ttft_ok,
            "starts": float(self.starts),
            "changes": float(self.changes),
            "peak": float(self.peak),
        }

    @property
    def dollars(self) -> float:
        """What the GPU-seconds cost."""
        return self.gpu_seconds.total / 3600.0 * self.price_per_gpu_hour


class Series:
    """Records the fleet every `interval_s`. With too many points, every other point is dropped."""

    def __init__(self) -> None:
        self.interval_s = _FIRST_INTERVAL_S
        self.next_at = 0.0
        self._rows: list[tuple[float, ...]] = []

    def note(self, fleet: Fleet, wanted: int | None) -> None:
        """Record the fleet as it is now."""
        totals = fleet.memory.totals[0]
        held = float(totals["held"])
        waiting = float(fleet.memory.replicas["waiting"][: int(totals["used"])].sum())
        self._rows.append(
            (
                fleet.now,
                float(totals["arrivals"]),
                float(fleet.target if wanted is None else wanted),
                float(fleet.target),
                float(fleet.ready),
                float(len(fleet.starting) + len(fleet.pending)),
                float(fleet.draining),
                held + waiting,
                held,
            )
        )
        if len(self._rows) > _MOST_POINTS:
            self._rows = self._rows[::2]
            self.interval_s *= 2
        self.next_at = self._rows[-1][0] + self.interval_s

    def timeline(self) -> Timeline:
        """The whole timeline."""
        rows = np.array(self._rows, dtype=np.float64).reshape(len(self._rows), 9)
        at, arrivals = rows[:, 0], rows[:, 1]
        between = np.diff(at, prepend=at[:1] - self.interval_s)
        rate = np.diff(arrivals, prepend=0.0) / np.maximum(between, 1e-9)
        return Timeline(self.interval_s, at, rate, *(rows[:, column] for column in range(2, 9)))


def percentiles(histogram: Floats) -> Percentiles:
    """The percentiles of a log-spaced histogram, exact to its bins' width of 1 %."""
    count = float(histogram.sum())
    if not count:
        return Percentiles(0.0, 0.0, (0.0,) * len(PERCENTILES))
    middles = layout.SHORTEST_S * layout.RATIO ** (np.arange(layout.BINS) + 0.5)
    below = np.cumsum(histogram)
    at = [middles[int(np.searchsorted(below, p / 100.0 * count))] for p in PERCENTILES]
    return Percentiles(count, float((histogram * middles).sum() / count), tuple(map(float, at)))


def _window_percentile(histograms: npt.NDArray[np.uint32], percentile: float) -> Floats:
    """One percentile of every row; 0 for a row without observations."""
    counts = histograms.sum(axis=1)
    below = np.cumsum(histograms, axis=1)
    index = (below < (percentile / 100.0 * counts)[:, None]).sum(axis=1)
    middles = layout.WINDOW_SHORTEST_S * layout.WINDOW_RATIO ** (np.arange(layout.WINDOW_BINS) + 0.5)
    found: Floats = np.where(counts > 0, middles[np.minimum(index, layout.WINDOW_BINS - 1)], 0.0)
    return found


def windows_of(fleet: Fleet, percentile: float, duration_s: float) -> tuple[Windows, Floats]:
    """The one-minute windows up to `duration_s`, and whether each is attained without cold requests (1 or 0).

    Counts decide, not percentiles of a histogram: a percentile is within its target if at least that share of
    observations is.
    """
    count = int(duration_s / layout.WINDOW_S) + 1
    rows = fleet.memory.windows[:count]
    share = percentile / 100.0 - 1e-9
    itl_ok = rows["itl_ok"] >= share * rows["itl"]
    attained = (rows["ttft_ok"] >= share * rows["requests"]) & itl_ok
    warm = rows["requests"] - rows["cold"]
    warm_attained = (rows["ttft_ok"] - rows["cold_ok"] >= share * warm) & itl_ok
    windows = Windows(
        requests=rows["requests"].copy(),
        ttft_ok=rows["ttft_ok"].copy(),
        cold=rows["cold"].copy(),
        rejected=rows["rejected"].copy(),
        ttft_p95_s=_window_percentile(fleet.memory.window_ttft[:count], percentile),
        itl_p95_s=_window_percentile(fleet.memory.window_itl[:count], percentile),
        itl_ok_share=np.where(rows["itl"] > 0, rows["itl_ok"] / np.maximum(rows["itl"], 1.0), 1.0),
        attained=attained.astype(np.float64),
    )
    return windows, warm_attained.astype(np.float64)


def lanes_of(fleet: Fleet, percentile: float, windows: Windows) -> tuple[LaneResult, ...]:
    """The results of each lane that has requests; empty if only one has."""
    rows = fleet.memory.windows[: len(windows.requests)]
    histograms = fleet.memory.histograms
    interactive = histograms[layout.TTFT_INTERACTIVE]
    share = percentile / 100.0 - 1e-9
    itl_ok = rows["itl_ok"] >= share * rows["itl"]
    found = []
    for lane, requests, in_time, ttft in (
        ("interactive", rows["interactive"], rows["interactive_ok"], interactive),
        (
            "standard",
            rows["requests"] - rows["interactive"],
            rows["ttft_ok"] - rows["interactive_ok"],
            histograms[layout.TTFT] + histograms[layout.TTFT_COLD] - interactive,
        ),
    ):
        if count := float(requests.sum()):
            attained = float(requests[(in_time >= share * requests) & itl_ok].sum())
            found.append(
                LaneResult(
                    lane, int(count), percentiles(ttft), _share(float(in_time.sum()), count), attained / count
                )
            )
    if count := float(fleet.memory.totals["background_arrivals"][0]):
        found.append(LaneResult("background", int(count), percentiles(histograms[layout.TTFT_BACKGROUND])))
    return tuple(found) if len(found) > 1 else ()


def background_of(fleet: Fleet, backlog: Backlog | None, duration_s: float) -> BackgroundResult | None:
    """The work of the lane `background`; its deadlines are judged by the minute."""
    totals = fleet.memory.totals[0]
    if not totals["background_arrivals"]:
        return None
    arrived, finished = (
        np.cumsum(fleet.memory.windows[name]) for name in ("background_arrivals", "background_finished")
    )
    late = before = 0.0
    for at, due in [] if backlog is None else backlog.times(duration_s):
        last = len(arrived) - 1
        submitted = arrived[min(int(at / layout.WINDOW_S), last)]
        unfinished = max(submitted - finished[min(int(due / layout.WINDOW_S) - 1, last)], 0.0)
        late += min(unfinished, submitted - before)
        before = submitted
    return BackgroundResult(
        requests=int(totals["background_arrivals"]),
        tokens=int(totals["background_tokens"]),
        finished=int(totals["background_finished"]),
        refused=int(totals["background_refused"]),
        finished_at_s=float(totals["background_last_end"]),
        late=int(late),
    )


def measure(
    fleet: Fleet,
    series: Series,
    percentile: float,
    duration_s: float,
    backlog: Backlog | None,
    **facts: Any,
) -> Result:
    """The result of a replay, from the counters of its fleet, and other fields as given."""
    totals = fleet.memory.totals[0]
    conditions = fleet.conditions
    windows, warm_attained = windows_of(fleet, percentile, duration_s)
    requests = float(windows.requests.sum())
    warm = windows.requests - windows.cold
    warm_ok = float((fleet.memory.windows["ttft_ok"] - fleet.memory.windows["cold_ok"]).sum())
    histograms = fleet.memory.histograms
    return Result(
        profile=fleet.profile.name,
        seed=conditions.seed,
        duration_s=duration_s,
        requests=int(requests),
        rejected=int(totals["rejected"]),
        unanswered=int(totals["arrivals"] - totals["rejected"] - totals["first_tokens"]),
        ttft_target_s=conditions.ttft_target_s,
        itl_target_s=conditions.itl_target_s,
        percentile=percentile,
        attainment=_share(float((windows.requests * windows.attained).sum()), requests),
        attainment_warm=_share(float((warm * warm_attained).sum()), float(warm.sum())),
        ttft_ok=_share(float(windows.ttft_ok.sum()), requests),
        ttft_ok_warm=_share(warm_ok, float(warm.sum())),
        infeasible=float(totals["infeasible"]) / max(requests, 1.0),
        ttft=percentiles(histograms[layout.TTFT] + histograms[layout.TTFT_COLD]),
        ttft_warm=percentiles(histograms[layout.TTFT]),
        ttft_cold=percentiles(histograms[layout.TTFT_COLD]),
        itl=percentiles(histograms[layout.ITL]),
        e2e=percentiles(histograms[layout.E2E]),
        gpu_seconds=fleet.gpu_seconds(),
        price_per_gpu_hour=fleet.profile.price_per_gpu_hour,
        starts=fleet.starts,
        failed_starts=fleet.failed_starts,
        peak=fleet.peak,
        preemptions=int(totals["preemptions"]),
        cached_share=float(totals["cached"] / max(totals["arrived_tokens"], 1.0)),
        adapter_requests=int(totals["adapter_requests"]),
        adapter_hits=float(totals["adapter_hits"] / max(totals["adapter_requests"], 1.0)),
        moves=int(totals["moves"]),
        windows=windows,
        timeline=series.timeline(),
        lanes=lanes_of(fleet, percentile, windows),
        background=background_of(fleet, backlog, duration_s),
        **facts,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 1.0
