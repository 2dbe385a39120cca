"""Latencies that replicas have measured, against their targets."""

from bisect import bisect_right
from dataclasses import dataclass

from serve_app.settings.knobs import Percentile


@dataclass(frozen=True, slots=True)
class Latency:
    """One part of latency over the last 30 s, by replica, in seconds."""

    percents: tuple[int, ...]
    rows: tuple[tuple[float, ...], ...]
    """For each replica that observed any: the number of observations, then the percentiles."""
    count: float
    """Observations of all replicas."""

    def at(self, percentile: Percentile) -> float:
        """Return the mean of the replicas' percentiles, weighted by their observations; 0 without any."""
        column = 1 + self.percents.index(percentile)
        return sum([row[0] * row[column] for row in self.rows]) / self.count if self.rows else 0.0

    def share_above(self, limit_s: float) -> float:
        """Return the share of observations above `limit_s`, interpolated for each replica by itself.

        Mean percentiles would not do: where latencies are of two kinds, the means belong to neither.
        """
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
        return min(max(above / (100.0 * self.count), 0.0), 1.0) if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies of the last 30 s against their targets."""

    ttft_queue: Latency
    ttft_prefill: Latency
    itl: Latency
    ttft_missed: float
    """Share of requests that waited too long in an engine's queue: beyond what prefill leaves of the target,
    or beyond half a prefill if that is more."""
    itl_missed: float
    """Share of inter-token latencies above `Feasibility.itl_limit_s`."""
    ttft_feasible: bool
    """Whether prefill leaves anything of the target at its median."""
