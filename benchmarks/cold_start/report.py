"""Medians and ratios over rounds, as JSON and Markdown."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.cold_start.measure import Measured
from benchmarks.cold_start.phases import ROWS
from benchmarks.cold_start.systems import SYSTEMS
from benchmarks.cold_start.usage import GROUPS
from benchmarks.common.markdown import table

OTHER_LIMIT_CORES = 0.1


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is written."""

    systems: Sequence[str]
    """By name; the first is what ratios refer to."""
    settings: Mapping[str, str]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    starts: Sequence[Measured]

    def totals(self, system: str, replicas: int) -> list[Measured]:
        """The starts without tracing, by round."""
        return self._starts(system, replicas, traced=False)

    def traced(self, system: str, replicas: int) -> list[Measured]:
        """The starts with tracing."""
        return self._starts(system, replicas, traced=True)

    def replicas(self) -> list[int]:
        """How many were started at once, in the order of the measurement."""
        return list(dict.fromkeys(start.replicas for start in self.starts))

    def phases(self, system: str, replicas: int) -> dict[tuple[str, str], float]:
        """Median seconds of each phase, over traced starts and their replicas, by row and phase.

        A phase that comes several times in a start counts with its sum, and with 0 s in a start without it.
        """
        sums: list[dict[tuple[str, str], float]] = []
        for phases in (phases for start in self.traced(system, replicas) for phases in start.phases):
            sums.append({})
            for phase in phases:
                key = (phase.row, phase.name)
                sums[-1][key] = sums[-1].get(key, 0.0) + phase.seconds
        keys = dict.fromkeys(key for one in sums for key in one)
        found = {key: median(one.get(key, 0.0) for one in sums) for key in keys}
        return dict(sorted(found.items(), key=lambda item: ROWS.index(item[0][0])))

    def ratio(self, system: str, replicas: int, read: Callable[[Measured], float]) -> float | None:
        """The median of the ratios to the first system, round by round; None without rounds of both."""
        mine, base = self.totals(system, replicas), self.totals(self.systems[0], replicas)
        pairs = [
            (read(one), read(other)) for one in mine for other in base if one.round == other.round
        ]  # Round by round: what drifts slowly on the machine cancels out.
        return median(one / other for one, other in pairs) if pairs and all(b for _, b in pairs) else None

    def _starts(self, system: str, replicas: int, *, traced: bool) -> list[Measured]:
        mine = [s for s in self.starts if (s.system, s.replicas, s.traced) == (system, replicas, traced)]
        return sorted(mine, key=lambda start: start.round)


def write(report: Report, folder: Path) -> None:
    """Write `results.json` and `results.md`."""
    (folder / "results.json").write_text(to_json(report), encoding="utf-8")
    (folder / "results.md").write_text(to_markdown(report), encoding="utf-8")


def to_json(report: Report) -> str:
    """Return every start with its phases, and the medians; seconds, bytes and cores as the names say."""
    document = asdict(report)
    document["summary"] = [
        {
            "system": system,
            "replicas": replicas,
            **{key: _median(report.totals(system, replicas), read) for key, _, read, _ in _TOTALS},
            "phases_s": [
                {"row": row, "phase": phase, "seconds": seconds}
                for (row, phase), seconds in report.phases(system, replicas).items()
            ],
        }
        for replicas in report.replicas()
        for system in report.systems
    ]
    return json.dumps(document, indent=1) + "\n"


def to_markdown(report: Report) -> str:
    """The report for people."""
    parts = ["# Cold start", _facts(report)]
    for replicas in report.replicas():
        parts.append(f"## {replicas} replica{'s at once' if replicas > 1 else ''}")
        if any(report.totals(system, replicas) for system in report.systems):
            parts += [_totals(report, replicas), _usage(report, replicas)]
        if any(report.traced(system, replicas) for system in report.systems):
            parts += [f"### Phases, in seconds, with {replicas}", _phases(report, replicas)]
    doubts = [
        f"- **Doubtful:** {SYSTEMS[one.system].title}, {one.replicas} at once, round {one.round}: "
        f"others on this machine used {one.other_cores:.2f} cores"
        for one in report.starts
        if one.other_cores > OTHER_LIMIT_CORES
    ]
    return "\n\n".join([*parts, *(["\n".join(doubts)] if doubts else [])]) + "\n"


def _facts(report: Report) -> str:
    groups = (("Machine", report.machine), ("Versions", report.versions), ("Settings", report.settings))
    lines = [f"- **{title}:** " + ", ".join(f"{k} {v}" for k, v in group.items()) for title, group in groups]
    lines.append(
        "- Medians over starts without tracing, with lowest and highest; then the median of the ratios to "
        f"{SYSTEMS[report.systems[0]].title}, round by round. Phases are medians of starts with tracing."
    )
    return "\n".join(lines)


_TOTALS: tuple[tuple[str, str, Callable[[Measured], float], str], ...] = (
    ("first_token_s", "first token s", lambda m: m.first_token_s, ".2f"),
    ("all_answered_s", "all answered s", lambda m: m.all_answered_s, ".2f"),
    ("cpu_s", "CPU s", lambda m: sum(m.cpu_s.values()), ".1f"),
    ("pss_gib", "memory GiB (PSS)", lambda m: sum(m.pss_bytes.values()) / 2**30, ".2f"),
    ("up_s", "`tideserve run` up s", lambda m: m.up_s or 0.0, ".1f"),
)


def _median(starts: Sequence[Measured], read: Callable[[Measured], float]) -> float | None:
    return median(map(read, starts)) if starts else None


def _totals(report: Report, replicas: int) -> str:
    rows = []
    for system in report.systems:
        starts = report.totals(system, replicas)
        cells = [SYSTEMS[system].title, str(len(starts))]
        for key, _, read, form in _TOTALS:
            values = [read(start) for start in starts]
            if not values or (key == "up_s" and not SYSTEMS[system].ours):
                cells.append("-")
                continue
            ratio = report.ratio(system, replicas, read) if key != "up_s" else None
            times = f", ratio {ratio:.2f}" if ratio is not None and system != report.systems[0] else ""
            spread = (
                f" ({min(values):{form}}-{max(values):{form}}{times})" if len(values) > 1 or times else ""
            )
            cells.append(f"{median(values):{form}}{spread}")
        rows.append(cells)
    return table(["", "starts", *(title for _, title, _, _ in _TOTALS)], rows)


def _usage(report: Report, replicas: int) -> str:
    """CPU seconds and GiB of each group of processes."""
    rows = []
    for group in GROUPS:
        cells = []
        for system in report.systems:
            starts = report.totals(system, replicas)
            cpu_s = [start.cpu_s.get(group, 0.0) for start in starts]
            pss = [start.pss_bytes.get(group, 0) / 2**30 for start in starts]
            cells += [f"{median(cpu_s):.2f}", f"{median(pss):.2f}"] if any(cpu_s) or any(pss) else ["-", "-"]
        if set(cells) != {"-"}:
            rows.append([group, *cells])
    header = [f"{SYSTEMS[system].title}: {what}" for system in report.systems for what in ("CPU s", "GiB")]
    return table(["", *header], rows)


def _phases(report: Report, replicas: int) -> str:
    columns = [report.phases(system, replicas) for system in report.systems]
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [
        [
            f"{row}: {name}",
            *(f"{column[row, name]:.2f}" if (row, name) in column else "-" for column in columns),
        ]
        for row in ROWS
        for row_of, name in keys
        if row_of == row
    ]
    totals = [_median(report.traced(s, replicas), lambda m: m.all_answered_s) for s in report.systems]
    rows.append(["until all had answered", *("-" if one is None else f"{one:.2f}" for one in totals)])
    return table(["", *(SYSTEMS[system].title for system in report.systems)], rows)
