"""`python -m benchmarks.law_cells`: see README.md beside this file."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict

from benchmarks.autoscaling.execute import library_versions
from benchmarks.autoscaling.pool import Failure, Progress, run_all
from benchmarks.autoscaling.store import Store
from benchmarks.autoscaling.windows import Window, find_windows
from benchmarks.law_cells.execute import execute
from benchmarks.law_cells.figures import CellRun
from benchmarks.law_cells.matrix import matrix
from benchmarks.law_cells.options import Options, parse
from benchmarks.law_cells.page import Facts, page
from benchmarks.law_cells.plan import CellJob, plan
from benchmarks.law_cells.results import Row, columns, rows
from benchmarks.law_cells.verdicts import Verdict, verdicts
from loadtests.machine import machine
from replay.defaults import OURS

_INTERRUPTED = 130
_NO_WINDOWS = ("none",)


def main(argv: list[str]) -> int:
    """0 when all that is asked is met, 1 when it is not or a replay failed, 2 for a wrong command line."""
    options = parse(argv)
    facts, versions = machine(), library_versions()
    store = Store(options.out / "law-cells-runs.jsonl", CellRun)
    try:
        finished = store.load()
        jobs = plan(options.cells, _windows(options), options.laws, options.policies, options.cut_s)
    except ValueError as error:
        print(f"python -m benchmarks.law_cells: {error}", file=sys.stderr)
        return 2
    fresh = {job.key for job in jobs if options.is_fresh(job.column)}
    known = {key: run for key, run in finished.items() if key not in fresh}
    # The peers' runs of cells that differ only in the reports to our policy are the same.
    missing = list({job.key: job for job in reversed(jobs) if job.key not in known}.values())
    failures: dict[str, str] = {}
    try:
        known |= _run(missing, len({job.key for job in jobs}) - len(missing), options.jobs, store, failures)
    except KeyboardInterrupt:
        print(
            "interrupted; finished runs are kept, and the same command goes on with the rest", file=sys.stderr
        )
        return _INTERRUPTED
    found_rows, names = rows(jobs, known), columns(jobs)
    laws = [law.name for law in options.laws]
    found = verdicts(found_rows, [name for name in laws if name != OURS])
    about = Facts(
        shlex.join(["python", "-m", "benchmarks.law_cells", *argv]),
        facts,
        versions,
        options.laws,
        options.cut_s,
        failures,
    )
    _write(options, page(found_rows, names, options.cells, found, about), found_rows, found, about)
    print(matrix(found_rows, names, laws))
    for verdict in found:
        mark = {True: "met", False: "MISSED", None: "not judged"}[verdict.met]
        print(f"{mark:>10}  {verdict.asked}: {verdict.shown}")
    print(f"page: {options.page}")
    return 0 if all(verdict.met for verdict in found) and not failures else 1


def _windows(options: Options) -> list[Window]:
    """The recorded windows, where a cell needs them. Raises ValueError where there are none."""
    if options.windows == _NO_WINDOWS or all(cell.traffic for cell in options.cells):
        return []
    return find_windows(options.traces, options.cut_s, options.windows)


def _run(
    jobs: Sequence[CellJob], known: int, workers: int, store: Store[CellRun], failures: dict[str, str]
) -> Mapping[str, CellRun]:
    """Run what is missing, the longest first; each run is kept as soon as it is finished."""
    progress = Progress(jobs, known, workers, sys.stderr)
    runs: dict[str, CellRun] = {}
    with closing(run_all(sorted(jobs, key=lambda job: -job.effort), execute, workers)) as finished:
        for job, run in finished:
            progress.finished(job, run)
            if isinstance(run, Failure):
                failures[job.label] = run.why
                continue
            store.add(job.key, run)
            runs[job.key] = run
    return runs


def _write(
    options: Options, text: str, found_rows: Sequence[Row], found: Sequence[Verdict], facts: Facts
) -> None:
    for folder in (options.page.parent, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    options.page.write_text(text, encoding="utf-8")
    document = {
        "command": facts.command,
        "machine": dict(facts.machine),
        "versions": dict(facts.versions),
        "laws": {law.name: law.digest for law in facts.laws},
        "cut_s": facts.cut_s,
        "failures": dict(facts.failures),
        "verdicts": [asdict(verdict) for verdict in found],
        "rows": [
            {
                "cell": row.cell.name,
                "traffic": row.traffic.name,
                "smooth": row.traffic.smooth,
                "runs": {name: asdict(run) for name, run in row.runs.items()},
            }
            for row in found_rows
        ],
    }
    name = "law-cells.json" if options.whole else "law-cells-part.json"
    (options.out / name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
