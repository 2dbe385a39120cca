"""`python -m benchmarks.night_backlog TRACE`: the cost of a nightly backlog, by the way in which it runs.

A day is composed from a recorded hour, in a 24th of the time by default. It begins at noon. Arrivals
follow a sine from `NIGHT_SHARE` of the highest rate at 03:00 to all of it at 15:00. The production policy
serves the day without a backlog, with a backlog of 20 % of the day's tokens in the lane `background`, from
22:00 to 06:00, and with as many more standard requests over the day. docs/measurements.md has the figures.
"""

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.common.markdown import table
from replay.production import Production
from replay.profile import load_profile
from replay.result import Result
from replay.scenario import scenario
from serve_app.settings.knobs import Knobs
from traces import ArrayTrace, open_trace
from traces.backlog import Backlog, WithBacklog
from traces.scale import at_rate
from traces.trace import Trace, join

DAY_S = 86_400.0
NIGHT_SHARE = 0.15
SHARE = 0.2
COLD_START_S = (60.0, 90.0)
KNOBS = Knobs(min_replicas=1, max_replicas=32)


def compose_day(trace: Trace, length_s: float, rate: float) -> ArrayTrace:
    """Return a day of `length_s` seconds with the requests of `trace`, at most `rate` times as many."""
    recorded = join(list(trace.chunks()))
    draws = np.random.default_rng(0)
    repeats = int(np.ceil(length_s / recorded.arrival_s[-1]))
    parts = []
    for number in range(repeats):
        arrival_s = recorded.arrival_s + number * recorded.arrival_s[-1]
        rise = (1 - np.cos((arrival_s / length_s + 9 / 24) * 2 * np.pi)) / 2
        kept = draws.random(len(arrival_s)) < rate * (NIGHT_SHARE + (1 - NIGHT_SHARE) * rise)
        kept &= arrival_s < length_s
        parts.append((arrival_s[kept], recorded.input_tokens[kept], recorded.output_tokens[kept]))
    return ArrayTrace("day", *(np.concatenate(column) for column in zip(*parts, strict=True)))


def more_requests(day: ArrayTrace) -> ArrayTrace:
    """Return `day` with `SHARE` more standard requests over the whole of it."""
    more = join(list(at_rate(day.chunks(), 1.0 + SHARE, None, 0, day.name)))
    return ArrayTrace(day.name, more.arrival_s, more.input_tokens, more.output_tokens)


def run(
    trace: Trace, length_s: float, warm: int, backlog: Backlog | None = None, bounded: bool = True
) -> Result:
    """Replay the production policy, with `warm` replicas ready at the start.

    `bounded`: whether steps with background sequences are bounded, as in production.
    """
    start_s = (COLD_START_S[0] * length_s / DAY_S, COLD_START_S[1] * length_s / DAY_S)
    asked = scenario(
        trace, knobs=KNOBS, profile=load_profile("a100-80gb"), cold_start_s=start_s, backlog=backlog
    )
    if not bounded:
        asked = replace(asked, conditions=replace(asked.conditions, background_step_s=math.inf))
    return asked.run(Production(KNOBS), warm=warm)


def row(name: str, result: Result, base: Result, length_s: float) -> list[str]:
    """Return a row of the table."""
    spent, before, work = result.gpu_seconds.total, base.gpu_seconds.total, result.background
    hour_s = length_s / 24
    done = "" if work is None else f"{work.finished_at_s / hour_s - 10:.1f} h, {work.late} late"
    return [
        name,
        f"{spent:,.0f}",
        f"{100 * (spent / before - 1):+.1f} %",
        f"{100 * result.attainment:.2f} %",
        f"{1000 * result.ttft.at_s[2]:.0f} ms",
        f"{1000 * result.itl.at_s[2]:.0f} ms",
        done,
    ]


def main(arguments: list[str]) -> int:
    """Replay and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.night_backlog")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--rate", type=float, default=0.6, help="share of the recorded rate at 15:00")
    parser.add_argument("--day-s", type=float, default=3600.0, help="seconds of the day")
    options = parser.parse_args(arguments)
    length_s = options.day_s
    day = compose_day(open_trace(options.trace), length_s, options.rate)
    backlog = Backlog(SHARE, submit_s=length_s * 10 / 24, due_s=length_s * 8 / 24)
    with_backlog = WithBacklog(day, backlog)
    warm = scenario(day, knobs=KNOBS, profile=load_profile("a100-80gb")).warm()
    base = run(day, length_s, warm)
    rows = [row("no backlog", base, base, length_s)]
    print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    for name, trace, own, bounded in (
        ("in the lane `background`", with_backlog, backlog, True),
        ("as standard requests over the day", more_requests(day), None, True),
        ("in the lane `background`, without a bound on steps", with_backlog, backlog, False),
    ):
        rows.append(row(name, run(trace, length_s, warm, own, bounded), base, length_s))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    headings = ["backlog", "GPU-seconds", "extra", "attainment", "TTFT P95", "ITL P95", "done after"]
    print(table(headings, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
