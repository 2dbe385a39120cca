"""`python -m benchmarks.days.evaluate`: what yesterday's demand is worth as a forecast. See README.md."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.markdown import table
from benchmarks.days.__main__ import PEAK_RPS
from serve_app.learning.daily import DailyDemand
from traces import open_trace
from traces.days import DAY_S, DaysTrace
from traces.trace import Floats, Trace

BUCKET_S = 5.0
WINDOW = 12
"""Buckets over which demand is read: a minute, as the policy does where a start takes that long."""
LATELY = 120
"""Buckets, ten minutes."""
EVERY = 12
"""Buckets between two forecasts."""
HORIZONS_S = (75.0, 900.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way to expect demand, over all moments that were judged."""

    name: str
    exceeded: float
    """The share of moments after which demand was higher than expected."""
    missing: float
    """Requests per second that were expected too few, on average over all moments."""
    spare: float
    """And too many."""


def demand(trace: Trace, duration_s: float) -> Floats:
    """Return the requests per second over the last minute, every five seconds."""
    counts = np.zeros(int(duration_s / BUCKET_S))
    for chunk in trace.chunks():
        np.add.at(counts, (chunk.arrival_s / BUCKET_S).astype(np.int64), 1.0)
    total = np.concatenate([np.zeros(WINDOW), np.cumsum(counts)])
    rates: Floats = (total[WINDOW:] - total[:-WINDOW]) / (WINDOW * BUCKET_S)
    return rates


def outcomes(rates: Floats, horizon_s: float, first: int) -> list[Outcome]:
    """Return how often demand exceeded what was expected within `horizon_s`, from bucket `first` on."""
    highest, now, daily, lately = np.array(list(_moments(rates, int(horizon_s / BUCKET_S), first))).T
    both = np.maximum(daily, lately)
    spare = float(np.mean(np.maximum(both - highest, 0.0)))
    factors = np.linspace(1.0, 2.0, 1001)
    as_much = min(factors, key=lambda f: abs(float(np.mean(np.maximum(f * lately - highest, 0.0))) - spare))
    ways = {
        "as now": now,
        "by the time of day, where trusted": daily,
        "as the last 10 minutes": lately,
        "both of these": both,
        f"as the last 10 minutes, times {as_much:.3g}": as_much * lately,
    }
    return [
        Outcome(
            name,
            float(np.mean(highest > way)),
            float(np.mean(np.maximum(highest - way, 0.0))),
            float(np.mean(np.maximum(way - highest, 0.0))),
        )
        for name, way in ways.items()
    ]


def _moments(rates: Floats, ahead: int, first: int) -> Iterator[tuple[float, ...]]:
    memory = DailyDemand()
    for bucket, rate in enumerate(rates.tolist()):
        now = (bucket + 1) * BUCKET_S
        memory = memory.note(now, rate)
        if bucket < first or bucket % EVERY or bucket + ahead >= len(rates):
            continue
        told = memory.expected(now, ahead * BUCKET_S)
        lately = float(rates[max(0, bucket + 1 - LATELY) : bucket + 1].max())
        daily = rate if told is None else max(rate, told.rps)
        yield (float(rates[bucket + 1 : bucket + 1 + ahead].max()), rate, daily, lately)


def main(argv: Sequence[str]) -> int:
    """Print a table for each horizon."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.days.evaluate", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--trace", type=Path, required=True, help="the recording")
    parser.add_argument("--days", type=int, default=14, help="days, from a Monday on")
    parser.add_argument("--learn-days", type=int, default=1, help="days at the beginning that are not judged")
    parser.add_argument("--peak-rps", type=float, default=PEAK_RPS, help="mean rate at the peak of a weekday")
    parser.add_argument("--seed", type=int, default=0, help="seed of the days")
    given = parser.parse_args(argv)
    trace = DaysTrace(open_trace(given.trace), given.days, given.peak_rps, given.seed)
    rates = demand(trace, given.days * DAY_S)
    for horizon_s in HORIZONS_S:
        found = outcomes(rates, horizon_s, int(given.learn_days * DAY_S / BUCKET_S))
        rows = [[one.name, f"{one.exceeded:.1%}", f"{one.missing:.2f}", f"{one.spare:.2f}"] for one in found]
        print(f"\nThe next {horizon_s:g} s, mean demand {rates.mean():.1f} requests/s:\n")
        print(table(["expected", "exceeded", "missing, requests/s", "spare, requests/s"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
