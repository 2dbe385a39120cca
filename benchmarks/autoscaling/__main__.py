"""`python -m benchmarks.autoscaling`: see README.md beside this file."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from benchmarks.autoscaling.execute import execute, library_versions
from benchmarks.autoscaling.options import Options, parse
from benchmarks.autoscaling.page import Facts, page
from benchmarks.autoscaling.plan import Job, plan
from benchmarks.autoscaling.pool import Failure, Progress, run_all
from benchmarks.autoscaling.store import Run, Store, as_rows
from benchmarks.autoscaling.summary import Results
from benchmarks.autoscaling.targets import Target, met, targets
from benchmarks.autoscaling.windows import find_windows
from loadtests.machine import machine

_NOTES = Path(__file__).parent
"""The folder of `tried.md`, written by hand, and of `known_needs.md`, which `known_needs` writes."""
_INTERRUPTED = 130


def main(argv: list[str]) -> int:
    """0 when all targets are met, 1 when one is missed or a replay failed, 2 for a wrong command line."""
    options = parse(argv)
    facts, versions = machine(), library_versions()
    try:
        windows = find_windows(options.windows, options.cut_s, options.only)
        store = Store(options.results / "autoscaling-runs.jsonl", Run)
        finished = store.load()
    except ValueError as error:
        print(f"python -m benchmarks.autoscaling: {error}", file=sys.stderr)
        return 2
    jobs = plan(windows, options.seeds, options.policies, options.parts, thorough=options.thorough)
    known = {
        job: finished[job.key] for job in jobs if job.key in finished and not options.is_fresh(job.policy)
    }
    missing = [job for job in jobs if job not in known]
    if store.other_versions:
        print(f"{store.other_versions} finished runs are another version's and do not count", file=sys.stderr)
    progress = Progress(missing, len(known), options.jobs, sys.stderr)
    if options.dry_run:
        print("\n".join(job.label for job in missing))
        return 0
    failures: dict[str, str] = {}
    try:
        known |= _run(missing, options.jobs, store, progress, failures)
    except KeyboardInterrupt:
        print(
            "interrupted; finished runs are kept, and the same command goes on with the rest", file=sys.stderr
        )
        return _INTERRUPTED
    results = Results(windows, [known[job] for job in jobs if job in known])
    found = targets(results)
    command = shlex.join(["python", "-m", "benchmarks.autoscaling", *argv])
    about = Facts(
        command,
        facts,
        versions,
        options.seeds,
        options.cut_s,
        len({versions["code"], *(run.code for run in results.runs)}),
        failures,
        sum(run.wall_s for run in results.runs),
    )
    _write(options, results, found, about)
    for target in found:
        mark = {True: "met", False: "MISSED", None: "not judged"}[target.met]
        print(f"{mark:>10}  {target.asked}: {target.shown}")
    print(f"page: {options.page}\nresults: {options.results / 'autoscaling.json'}")
    return 0 if met(found) and not failures else 1


def _run(
    jobs: Sequence[Job], workers: int, store: Store[Run], progress: Progress, failures: dict[str, str]
) -> Mapping[Job, Run]:
    """Run what is missing; each run is kept as soon as it is finished."""
    runs: dict[Job, Run] = {}
    with closing(run_all(jobs, execute, workers)) as finished:
        for job, run in finished:
            progress.finished(job, run)
            if isinstance(run, Failure):
                failures[job.label] = run.why
                continue
            store.add(job.key, run)
            runs[job] = run
    return runs


def _write(options: Options, results: Results, found: Sequence[Target], facts: Facts) -> None:
    # matplotlib takes a second to import, and workers import this module.
    from benchmarks.autoscaling.picture import write_picture  # noqa: PLC0415

    write_picture(results, options.picture)
    text = page(results, found, facts, options.picture, options.page, _NOTES)
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(text, encoding="utf-8")
    document = {
        "command": facts.command,
        "machine": dict(facts.machine),
        "versions": dict(facts.versions),
        "seeds": list(facts.seeds),
        "cut_s": facts.cut_s,
        "mixed_code": facts.codes > 1,
        "failures": dict(facts.failures),
        "verdict": {
            "met": met(found) and not facts.failures,
            "targets": [asdict(target) for target in found],
        },
        "windows": [
            {**asdict(window), "path": window.path.name, "smooth": window.smooth}
            for window in results.windows
        ],
        **as_rows(results.runs, Run),
    }
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / "autoscaling.json"
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
