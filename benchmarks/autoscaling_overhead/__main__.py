"""`python -m benchmarks.autoscaling_overhead`: see README.md beside this file."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.autoscaling_overhead.report import Report, missed, to_markdown, write
from benchmarks.autoscaling_overhead.timings import measure
from loadtests.machine import machine, versions

_RESULTS = REPOSITORY / "benchmarks" / "results" / "autoscaling_overhead"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscaling_overhead",
        description="What a scaling decision costs Ray Serve's controller, beside its default policy.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--replicas", default="1,10,100,1000", help="numbers of engine replicas")
    parser.add_argument("--rounds", type=int, default=50, help="measurements of each part and size")
    parser.add_argument("--warm-up", type=int, default=30, help="rounds before, which do not count")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for the results")
    return parser


def main(argv: list[str]) -> int:
    """0 when all goals are met, 1 when one is missed, 2 for a wrong command line."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        sizes = [int(part) for part in given.replicas.split(",")]
    except ValueError:
        parser.error(f"--replicas: {given.replicas!r} is not a list of whole numbers")
    if min(sizes) < 1 or given.rounds < 1 or given.warm_up < 0:
        parser.error("--replicas and --rounds must be at least 1, --warm-up at least 0")
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # a line a decision would be half of its cost
    facts = machine()
    timings = [timing for size in sizes for timing in measure(size, given.rounds, given.warm_up)]
    report = Report(facts, versions(), timings)
    write(report, given.out)
    print(to_markdown(report))
    print(f"results: {given.out / 'results.md'} and results.json")
    return 1 if missed(report) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
