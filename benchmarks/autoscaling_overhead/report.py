"""The timings as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.autoscaling_overhead.timings import PARTS, Timing, share_of_a_core
from benchmarks.common.markdown import table

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
