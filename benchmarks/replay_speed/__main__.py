"""`python -m benchmarks.replay_speed`: see README.md beside this file."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.common.markdown import table
from benchmarks.replay_speed.timed import Timed
from loadtests.machine import machine, versions

GOAL_S = 60.0
"""A million requests under `ours`, on one core."""
GOAL_MIB = 50.0
"""The most that the peak memory may grow with the number of requests."""
_TIMEOUT_S = 1800


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay_speed",
        description="How fast a replay is, and how much memory it takes.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--requests", default="100000,1000000", help="numbers of requests")
    parser.add_argument(
        "--policies", default="static:16,ours", help="policies, as `tideserve replay` has them"
    )
    parser.add_argument("--trace", default="", help="a trace to repeat instead of made-up requests")
    return parser


def main(argv: list[str]) -> int:
    """0 when all goals are met, 1 when one is missed, 2 for a wrong command line."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        sizes = [int(part) for part in given.requests.split(",")]
    except ValueError:
        parser.error(f"--requests: {given.requests!r} is not a list of whole numbers")
    if min(sizes) < 1:
        parser.error(f"--requests: {given.requests}: must be at least 1")
    if given.trace and not Path(given.trace).is_file():
        parser.error(f"--trace: {given.trace}: no such file")
    with tempfile.TemporaryDirectory() as empty:
        cold = _run("static:16", 20, "", {"NUMBA_CACHE_DIR": empty})
    print(_facts())
    print(f"- **Compilation:** {cold.compile_s:.1f} s with an empty cache\n")
    timings = [
        _run(policy, requests, given.trace, {}) for policy in given.policies.split(",") for requests in sizes
    ]
    print(_table(timings))
    problems = missed(timings)
    print("\n" + ("\n".join(f"- **Goal missed:** {text}" for text in problems) or "All goals met."))
    return 1 if problems else 0


def missed(timings: Sequence[Timed]) -> list[str]:
    """The goals that were missed, in words."""
    problems = []
    for timing in timings:
        allowed = GOAL_S * max(1.0, timing.requests / 1e6)
        if timing.policy == "ours" and timing.cpu_s >= allowed:
            problems.append(
                f"{timing.requests:,} requests under ours took {timing.cpu_s:.0f} s; the goal is {allowed:g}"
            )
        same = [other for other in timings if other.policy == timing.policy]
        least = min(same, key=lambda other: other.requests)
        if timing.peak_mib > least.peak_mib + GOAL_MIB:
            problems.append(
                f"{timing.requests:,} requests under {timing.policy} took {timing.peak_mib:.0f} MiB, "
                f"{least.requests:,} took {least.peak_mib:.0f}; the goal is {GOAL_MIB:g} more at most"
            )
    return problems


def _run(policy: str, requests: int, trace: str, environment: dict[str, str]) -> Timed:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.replay_speed.timed", policy, str(requests), trace],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise SystemExit(f"{policy} on {requests} requests: {done.stderr.strip()}")
    return Timed(**json.loads(done.stdout.splitlines()[-1]))


def _table(timings: Sequence[Timed]) -> str:
    rows = [
        [
            timing.policy,
            f"{timing.requests:,}",
            f"{timing.hours:.1f}",
            f"{timing.cpu_s:.1f}",
            f"{timing.wall_s:.1f}",
            f"{timing.per_second:,.0f}",
            f"{timing.before_mib:.0f}",
            f"{timing.peak_mib:.0f}",
            f"{timing.attainment:.1%}",
        ]
        for timing in timings
    ]
    header = [
        *("policy", "requests", "hours", "CPU s", "wall s", "requests/s"),
        *("MiB before", "MiB peak", "attained"),
    ]
    return table(header, rows)


def _facts() -> str:
    found = versions() | {name: metadata.version(name) for name in ("numpy", "numba")}
    groups = (("Machine", machine()), ("Versions", found))
    return "\n".join(
        f"- **{title}:** " + ", ".join(f"{k} {v}" for k, v in group.items()) for title, group in groups
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
