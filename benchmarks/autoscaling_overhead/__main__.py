"""`python -m benchmarks.autoscaling_overhead`: see README.md beside this file."""

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.autoscaling_overhead.timings import PARTS, Timing, measure, share_of_a_core
from benchmarks.common.markdown import table
from loadtests.machine import machine, versions

GOALS_S = {("decide", 100): 0.001, ("adapter", 1000): 0.020}
"""Medians, in seconds."""


@dataclass(frozen=True, slots=True)
class Report:
    """One run."""

    machine: Mapping[str, str]
    versions: Mapping[str, str]
    timings: Sequence[Timing]

    def of(self, replicas: int) -> list[Timing]:
        """The timings at one size."""
        return [timing for timing in self.timings if timing.replicas == replicas]

    @property
    def sizes(self) -> list[int]:
        """Numbers of replicas, as measured."""
        return list(dict.fromkeys(timing.replicas for timing in self.timings))


def missed(report: Report) -> list[str]:
    """The goals that were missed, in words."""
    return [
        f"{timing.part} at {timing.replicas} replicas: {1e3 * timing.median_s:.2f} ms, "
        f"the goal is {1e3 * GOALS_S[timing.part, timing.replicas]:g} ms"
        for timing in report.timings
        if timing.median_s >= GOALS_S.get((timing.part, timing.replicas), float("inf"))
    ]


def to_markdown(report: Report) -> str:
    """The report for people."""
    parts = ["# Autoscaling overhead", _facts(report)]
    for replicas in report.sizes:
        timings = report.of(replicas)
        rows = [
            [
                PARTS[timing.part],
                f"{1e3 * timing.median_s:.3f}",
                f"{1e3 * timing.p95_s:.3f}",
                f"{1e3 * timing.lowest_s:.3f}",
            ]
            for timing in timings
        ]
        share = share_of_a_core(timings)
        parts += [
            f"## {replicas} replica{'s' if replicas != 1 else ''}",
            table(["ms", "median", "P95", "lowest"], rows),
            f"Share of a core of Ray's controller: {share['ours']:.2%}, under the default policy "
            f"{share['peer']:.2%}.",
        ]
    parts.append("\n".join(f"- **Goal missed:** {text}" for text in missed(report)) or "All goals met.")
    return "\n\n".join(parts) + "\n"


def _facts(report: Report) -> str:
    groups = (("Machine", report.machine), ("Versions", report.versions))
    lines = [f"- **{title}:** " + ", ".join(f"{k} {v}" for k, v in group.items()) for title, group in groups]
    lines.append(f"- **Rounds:** {report.timings[0].rounds}, with new reports of all replicas in each")
    return "\n".join(lines)


def to_json(report: Report) -> str:
    """The report as JSON, in seconds."""
    document = {
        "machine": dict(report.machine),
        "versions": dict(report.versions),
        "timings": [asdict(timing) for timing in report.timings],
        "share_of_a_core": {str(n): share_of_a_core(report.of(n)) for n in report.sizes},
    }
    return json.dumps(document, indent=1) + "\n"


def write(report: Report, folder: Path) -> None:
    """`results.md` and `results.json` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(to_markdown(report), encoding="utf-8")
    (folder / "results.json").write_text(to_json(report), encoding="utf-8")


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
