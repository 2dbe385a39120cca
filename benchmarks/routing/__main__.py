"""`python -m benchmarks.routing`: see README.md beside this file."""

import argparse
import shlex
import sys
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.autoscaling.execute import library_versions
from benchmarks.autoscaling.pool import Failure, Progress, run_all
from benchmarks.routing.page import page
from benchmarks.routing.runs import Job, RoutingRun, execute, plan
from loadtests.machine import machine

_PAGE = REPOSITORY / "docs" / "benchmarks" / "routing.md"


def main(argv: list[str]) -> int:
    """0 where no routing beats ours, 1 where one does or a replay failed, 2 for a wrong command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.routing", description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, help="files of traces that carry prefix blocks")
    parser.add_argument("--jobs", type=int, default=1, help="processes; by default 1")
    parser.add_argument("--page", type=Path, default=_PAGE, help="where to write the page")
    options = parser.parse_args(argv)
    if not 1 <= options.jobs <= 256:
        parser.error(f"--jobs = {options.jobs}: must be from 1 to 256")
    missing = [f"{trace}: no such file" for trace in options.traces if not trace.is_file()]
    if missing:
        parser.error("; ".join(missing))
    facts, jobs = machine(), plan(options.traces)
    progress = Progress(jobs, 0, options.jobs, sys.stderr)
    runs: dict[Job, RoutingRun] = {}
    failures: list[str] = []
    for job, run in run_all(jobs, execute, options.jobs):
        progress.finished(job, run)
        if isinstance(run, Failure):
            failures.append(f"{job.label}: {run.why}")
        else:
            runs[job] = run
    if failures:
        print("\n".join(failures), file=sys.stderr)
        return 1
    shown = [trace.name for trace in options.traces]
    command = shlex.join(["python", "-m", "benchmarks.routing", *shown])
    text, best = page({job: runs[job] for job in jobs}, command, facts, library_versions())
    options.page.write_text(text)
    print(text)
    return 0 if best else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
