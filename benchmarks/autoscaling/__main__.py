"""`python -m benchmarks.autoscaling`: see README.md beside this file."""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.autoscaling.page import Facts, page
from benchmarks.autoscaling.picture import write_picture
from benchmarks.autoscaling.results import Results
from benchmarks.autoscaling.runs import GRID, execute, plan
from benchmarks.autoscaling.targets import Target, met, targets
from benchmarks.autoscaling.windows import find_windows
from benchmarks.common.pool import run_all
from benchmarks.peers.policies import PUBLISHED
from loadtests.machine import machine, versions
from replay.defaults import ORACLE, OURS, PROFILE, STATIC
from replay.policies import Engines, SpecError, make
from replay.profile import load_profile

WINDOWS = "../shared/traces/windows"
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = REPOSITORY / "docs" / "benchmarks" / "autoscaling.md"
PICTURE = REPOSITORY / "docs" / "images" / "autoscaling-cost-versus-attainment.svg"
_INTERRUPTED = 130


def main(argv: list[str]) -> int:
    """0 when all targets are met, 1 when one is missed or a replay failed, 2 for a wrong command line."""
    given = parse(argv)
    try:
        windows = find_windows(given.windows, given.cut)
    except ValueError as error:
        print(f"python -m benchmarks.autoscaling: {error}", file=sys.stderr)
        return 2
    facts = machine()
    try:
        runs, failures = run_all(plan(windows, given.seeds, given.policies), execute, given.jobs)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    results = Results(windows, runs.values())
    found = targets(results)
    command = shlex.join(["python", "-m", "benchmarks.autoscaling", *argv])
    about = Facts(command, facts, _versions(), given.seeds, given.cut, failures)
    _write(given, results, found, about)
    for target in found:
        mark = {True: "met", False: "MISSED", None: "not judged"}[target.met]
        print(f"{mark:>10}  {target.asked}: {target.shown}")
    print(f"page: {given.page}")
    return 0 if met(found) and not failures else 1


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line; a wrong one ends the process with status 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscaling",
        description="Every autoscaling policy on every recorded window: cost and attainment, by targets.",
    )
    add = parser.add_argument
    add("--windows", default=WINDOWS, help=f"folders or files, separated by commas; by default {WINDOWS}")
    add("--policies", metavar="SPECS", help="run only these; write + for a comma within one")
    add("--seeds", default="0,1,2", help="seeds; by default 0,1,2")
    add("--jobs", type=int, default=2, metavar="N", help="replays at a time; by default 2")
    add("--cut", type=float, metavar="SECONDS", help="replay only this much of each window")
    add("--out", type=Path, default=RESULTS, help="folder for autoscaling.json, and for the page of a part")
    given = parser.parse_args(argv)
    # The page of a part does not replace the page of the whole.
    whole = given.windows == WINDOWS and given.policies is None and given.cut is None
    given.page = PAGE if whole else given.out / "autoscaling-part.md"
    given.picture = PICTURE if whole else given.out / "autoscaling-part.svg"
    given.windows = [Path(part) for part in given.windows.split(",")]
    if given.policies is not None:
        given.policies = [part.strip().replace("+", ",") for part in given.policies.split(",")]
        for policy in given.policies:
            _check_policy(policy, parser)
    try:
        given.seeds = list(dict.fromkeys(int(part) for part in given.seeds.split(",")))
    except ValueError:
        parser.error(f"--seeds = {given.seeds!r}: must be whole numbers from 0, such as 0,1,2")
    if min(given.seeds) < 0:
        parser.error(f"--seeds = {given.seeds}: must be whole numbers from 0, such as 0,1,2")
    if not 1 <= given.jobs <= 256:
        parser.error(f"--jobs = {given.jobs}: must be from 1 to 256")
    if given.cut is not None and not 60.0 <= given.cut < math.inf:
        parser.error(f"--cut = {given.cut:g}: must be at least 60 seconds")
    return given


def _check_policy(policy: str, parser: argparse.ArgumentParser) -> None:
    if policy not in (OURS, ORACLE, STATIC, *PUBLISHED, *GRID):
        try:
            make(policy, Engines(load_profile(PROFILE).step))
        except SpecError as error:
            parser.error(f"--policies: {error}, {OURS}, {ORACLE} and {STATIC}")


def _versions() -> dict[str, str]:
    """Python, the commit, and the libraries that compute."""
    found = versions()
    libraries = {name: metadata.version(name) for name in ("numpy", "numba")}
    return {"python": found["python"], "commit": found["commit"], **libraries}


def _write(given: argparse.Namespace, results: Results, found: Sequence[Target], facts: Facts) -> None:
    for folder in (given.out, given.page.parent):
        folder.mkdir(parents=True, exist_ok=True)
    write_picture(results, given.picture)
    given.page.write_text(page(results, found, facts, given.picture, given.page), encoding="utf-8")
    document = {
        **asdict(facts),
        "targets": [asdict(target) for target in found],
        "runs": [asdict(run) for run in results.runs],
    }
    (given.out / "autoscaling.json").write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
