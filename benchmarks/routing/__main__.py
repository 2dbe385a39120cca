"""`python -m benchmarks.routing TRACE...`: our routing beside others, on prompts that share prefixes.

Each trace is replayed on static fleets of an A100 and an H100, once by each routing of `tideserve replay`.
A field is attainment, the requests within the TTFT target, the median TTFT, and the share of prompt tokens
found in caches. docs/measurements.md has the figures of Mooncake's traces `conversation` and `synthetic`
(kvcache-ai/Mooncake, `FAST25-release/traces`, Apache-2.0), which take a minute on two cores.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.markdown import table
from benchmarks.common.pool import run_all
from replay.defaults import GOAL
from replay.fleet.conditions import ROUTINGS
from replay.profile import load_profile
from replay.result import Result
from replay.run import replay
from serve_app.settings.knobs import Knobs
from traces import open_trace

KNOBS = Knobs(max_replicas=32, ttft_target_s=3.0, itl_target_s=0.1)
"""Prompts have 12,000 tokens on average, and 0.6 s of prefill on the slower of the two GPUs."""
FLEETS = {"a100-80gb": (5, 6, 7, 8, 10, 12), "h100": (2, 3, 4, 5, 6, 8)}
"""Replicas, by hardware profile: from too few for any routing to more than the best one needs."""


@dataclass(frozen=True, slots=True)
class Job:
    """One replay."""

    trace: Path
    profile: str
    replicas: int
    routing: str

    @property
    def label(self) -> str:
        """The name of the replay in progress and errors."""
        return f"{self.trace.stem} {self.profile} x {self.replicas} {self.routing}"


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one replay. Shares are from 0 to 1."""

    gpu_seconds: float
    attainment: float
    shown: str


def execute(job: Job) -> Run:
    """Replay `job`. Raises what `replay` raises."""
    profile = load_profile(job.profile)
    trace, policy = open_trace(job.trace), f"static:{job.replicas}"
    result = replay(trace, policy=policy, knobs=KNOBS, profile=profile, routing=job.routing)
    return Run(result.gpu_seconds.total, result.attainment, _shown(result))


def _shown(result: Result) -> str:
    shares = f"{100 * result.attainment:.1f} %, {100 * result.ttft_ok:.1f} %"
    return f"{shares}, {result.ttft.at_s[0]:.2f} s, {100 * result.cached_share:.0f} %"


def tables(runs: Mapping[Job, Run], traces: Sequence[Path]) -> str:
    """One table for each trace and GPU. Its last row is the cost of the least fleet that attains the goal."""
    parts = []
    for trace in traces:
        for profile, sizes in FLEETS.items():
            by_size = [[runs[Job(trace, profile, n, routing)] for routing in ROUTINGS] for n in sizes]
            rows = [[str(n), *(run.shown for run in row)] for n, row in zip(sizes, by_size, strict=True)]
            costs = [
                [run.gpu_seconds for run in column if run.attainment >= GOAL]
                for column in zip(*by_size, strict=True)
            ]
            rows.append([f"GPU-s to {GOAL:.0%}", *(f"{min(c):,.0f}" if c else "more" for c in costs)])
            parts.append(f"{trace.stem}, {profile}\n\n{table(['replicas', *ROUTINGS], rows)}")
    return "\n\n".join(parts)


def main(argv: list[str]) -> int:
    """Print the tables. 0 when done, 1 when a replay failed, 2 for a wrong command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.routing", description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, help="files of traces that carry prefix blocks")
    parser.add_argument("--jobs", type=int, default=1, help="processes; by default 1")
    options = parser.parse_args(argv)
    missing = [f"{trace}: no such file" for trace in options.traces if not trace.is_file()]
    if missing:
        parser.error("; ".join(missing))
    fleets = [(profile, n) for profile, sizes in FLEETS.items() for n in sizes]
    jobs = [Job(trace, *fleet, way) for trace in options.traces for fleet in fleets for way in ROUTINGS]
    runs, failures = run_all(jobs, execute, options.jobs)
    if failures:
        return 1
    print(tables(runs, options.traces))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
