"""The figures and the time series of a result, from the counters of the simulated fleet."""

import numpy as np
import numpy.typing as npt

from replay.controller import Controller
from replay.fleet import layout
from replay.fleet.fleet import Fleet
from replay.result import PERCENTILES, Percentiles, Result, Timeline, Windows
from traces.trace import Floats

_MOST_POINTS = 2_000
_FIRST_INTERVAL_S = 2.0


class Series:
    """Records the fleet every `interval_s`; when there are too many points, every other one is dropped."""

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
    """The percentiles of a log-spaced histogram, to within 1 %, the width of its bins."""
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
    """The one-minute windows up to `duration_s`, and which are attained without cold requests (1 or 0).

    Decided by counts, not by percentiles read off a histogram: the percentile is within its target where
    at least that share of observations is.
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


def measure(
    fleet: Fleet,
    series: Series,
    controller: Controller,
    *,
    trace: str,
    duration_s: float,
    percentile: float,
    changes: int,
    wall_s: float,
) -> Result:
    """The result of a replay, from the counters of its fleet."""
    totals = fleet.memory.totals[0]
    conditions = fleet.conditions
    windows, warm_attained = windows_of(fleet, percentile, duration_s)
    requests = float(windows.requests.sum())
    warm = windows.requests - windows.cold
    warm_ok = float((fleet.memory.windows["ttft_ok"] - fleet.memory.windows["cold_ok"]).sum())
    histograms = fleet.memory.histograms
    return Result(
        policy=controller.name,
        trace=trace,
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
        changes=changes,
        preemptions=int(totals["preemptions"]),
        cached_share=float(totals["cached"] / max(totals["arrived_tokens"], 1.0)),
        moves=int(totals["moves"]),
        windows=windows,
        timeline=series.timeline(),
        decisions=controller.decisions(),
        policy_errors=controller.errors,
        wall_s=wall_s,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 1.0
