"""Medians, spreads and ratios over rounds, as JSON, Markdown and, with matplotlib, a chart."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.common.markdown import table
from benchmarks.serving_overhead.load import Measured
from benchmarks.serving_overhead.rounds import Started


def draw(report: Report, folder: Path) -> str:
    """Write `results.svg` and `results.png` to `folder`; returns what was done, or why nothing was."""
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ImportError:
        return "no chart: matplotlib is not installed"
    pyplot = importlib.import_module("matplotlib.pyplot")

    shown = [
        metric
        for metric in METRICS
        if metric.key in ("tokens_per_s", "ttft_p50_ms", "server_cpu_ms_per_token")
    ]
    figure, axes = pyplot.subplots(1, len(shown), figsize=(4.5 * len(shown), 3.6), layout="constrained")
    width = 0.8 / len(report.titles)
    for axis, metric in zip(axes, shown, strict=True):
        for index, (server, title) in enumerate(report.titles.items()):
            spreads = [report.cell(server, c, metric).value for c in report.concurrencies]
            heights = [s.median for s in spreads]
            errors = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
            places = [at + (index - (len(report.titles) - 1) / 2) * width for at in range(len(spreads))]
            axis.bar(places, heights, width, yerr=errors, label=title, capsize=2)
        axis.set_xticks(range(len(report.concurrencies)), [str(c) for c in report.concurrencies])
        axis.set_xlabel("concurrent requests")
        axis.set_title(metric.title)
    axes[0].legend(fontsize="small")
    for suffix in ("svg", "png"):
        figure.savefig(folder / f"results.{suffix}", dpi=150)
    pyplot.close(figure)
    return f"chart: {folder / 'results.svg'} and .png"


CLIENT_LIMIT_CORES = 0.5
CLIENT_LIMIT_WAIT = 0.02
OTHER_LIMIT_CORES = 0.1


@dataclass(frozen=True, slots=True)
class Metric:
    """One column: how to read it off a measurement, in the unit shown."""

    key: str
    title: str
    read: Callable[[Measured], float]
    digits: int


METRICS = (
    Metric("tokens_per_s", "tok/s", lambda m: m.tokens_per_s, 0),
    Metric("ttft_p50_ms", "TTFT p50 ms", lambda m: m.ttft_p50_s * 1e3, 1),
    Metric("ttft_p95_ms", "TTFT p95 ms", lambda m: m.ttft_p95_s * 1e3, 1),
    Metric("itl_p50_ms", "ITL p50 ms", lambda m: m.itl_p50_s * 1e3, 2),
    Metric("itl_p95_ms", "ITL p95 ms", lambda m: m.itl_p95_s * 1e3, 2),
    Metric("server_cpu_ms_per_token", "CPU ms/token", lambda m: m.server_cpu_s_per_token * 1e3, 3),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """A value over several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median, minimum and maximum. ValueError on no values."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Cell:
    """One metric of one server at one concurrency, over all rounds."""

    server: str
    concurrency: int
    metric: str
    value: Spread
    ratio: Spread | None
    """To the first server, round by round; None where the first server has a zero."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is written."""

    titles: Mapping[str, str]
    """Servers that ran, by name; the first is what ratios refer to."""
    skipped: Mapping[str, str]
    notes: Sequence[str]
    settings: Mapping[str, str]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    starts: Sequence[Started]
    measurements: Sequence[Measured]

    @property
    def base(self) -> str:
        """The server that ratios refer to."""
        return next(iter(self.titles))

    @property
    def concurrencies(self) -> list[int]:
        """In the order they were run."""
        return list(dict.fromkeys(m.concurrency for m in self.measurements))

    def of(self, server: str, concurrency: int) -> list[Measured]:
        """One server at one concurrency, by round."""
        mine = [m for m in self.measurements if (m.server, m.concurrency) == (server, concurrency)]
        return sorted(mine, key=lambda m: m.round)

    def cell(self, server: str, concurrency: int, metric: Metric) -> Cell:
        """Median and spread of a metric and of its ratio to the base."""
        values = [metric.read(m) for m in self.of(server, concurrency)]
        base = [metric.read(m) for m in self.of(self.base, concurrency)]
        # Round by round: what drifts slowly on the machine cancels out.
        ratio = Spread.of([v / b for v, b in zip(values, base, strict=True)]) if all(base) else None
        return Cell(server, concurrency, metric.key, Spread.of(values), ratio)

    def cells(self) -> list[Cell]:
        """The whole summary."""
        return [
            self.cell(s, c, metric) for c in self.concurrencies for s in self.titles for metric in METRICS
        ]


def to_json(report: Report) -> str:
    """The report with every single measurement; seconds, bytes and cores as the field names say."""
    document = {
        "machine": dict(report.machine),
        "versions": dict(report.versions),
        "settings": dict(report.settings),
        "servers": dict(report.titles),
        "skipped": dict(report.skipped),
        "notes": list(report.notes),
        "summary": [asdict(cell) for cell in report.cells()],
        "starts": [asdict(started) for started in report.starts],
        "measurements": [asdict(m) for m in report.measurements],
    }
    return json.dumps(document, indent=1) + "\n"


def to_markdown(report: Report) -> str:
    """The report for people."""
    parts = ["# Serving overhead", _facts(report)]
    for concurrency in report.concurrencies:
        parts.append(f"## {concurrency} concurrent request{'s' if concurrency != 1 else ''}")
        parts.append(_metrics(report, concurrency, "", lambda spread, form: format(spread.median, form)))
        parts.append(_metrics(report, concurrency, "lowest-highest", _range))
        parts.append(_processes(report, concurrency))
    parts += ["## How sound the measurement is", _soundness(report), _starts(report)]
    if doubts := warnings(report):
        parts.append("\n".join(f"- {doubt}" for doubt in doubts))
    return "\n\n".join(parts) + "\n"


def _facts(report: Report) -> str:
    groups = (("Machine", report.machine), ("Versions", report.versions), ("Settings", report.settings))
    lines = [f"- **{title}:** " + ", ".join(f"{k} {v}" for k, v in group.items()) for title, group in groups]
    lines += [f"- **Skipped:** {name}: {why}" for name, why in report.skipped.items()]
    lines += [f"- **Note:** {note}" for note in report.notes]
    lines.append(
        f"- Medians over rounds; in brackets the median of the round-by-round ratios to "
        f"{report.titles[report.base]}. Below each table the lowest and highest round."
    )
    return "\n".join(lines)


def _range(spread: Spread, form: str) -> str:
    return f"{spread.low:{form}}-{spread.high:{form}}"


def _metrics(report: Report, concurrency: int, first: str, shown: Callable[[Spread, str], str]) -> str:
    rows = []
    for server, title in report.titles.items():
        cells = [title]
        for metric in METRICS:
            cell = report.cell(server, concurrency, metric)
            ratio = f" ({shown(cell.ratio, '.2f')})" if cell.ratio and server != report.base else ""
            cells.append(shown(cell.value, f",.{metric.digits}f") + ratio)
        rows.append(cells)
    return table([first, *(metric.title for metric in METRICS)], rows)


def _processes(report: Report, concurrency: int) -> str:
    """CPU per token by process, the most expensive first; those of less than a microsecond in one row."""
    by_server = {
        server: {
            name: median(1e6 * m.cpu_s_per_token.get(name, 0.0) for m in mine)
            for name in {name for m in mine for name in m.cpu_s_per_token}
        }
        for server in report.titles
        if (mine := report.of(server, concurrency))
    }
    most = {
        name: max(of.get(name, 0.0) for of in by_server.values()) for of in by_server.values() for name in of
    }
    shown = sorted((name for name, value in most.items() if value >= 1.0), key=lambda name: -most[name])
    rows = [[name, *(f"{of[name]:.0f}" if name in of else "" for of in by_server.values())] for name in shown]
    rest = [sum(value for name, value in of.items() if name not in shown) for of in by_server.values()]
    rows.append(["others", *(f"{value:.0f}" for value in rest)])
    return table(["CPU µs/token", *(report.titles[server] for server in by_server)], rows)


def _soundness(report: Report) -> str:
    header = ["", "at once", "requests a round", *(title for title, _, _ in _SOUNDNESS)]
    rows = []
    for concurrency in report.concurrencies:
        for server, title in report.titles.items():
            mine = report.of(server, concurrency)
            medians = [format(median(map(read, mine)), form) for _, read, form in _SOUNDNESS]
            rows.append([title, str(concurrency), str(mine[0].requests), *medians])
    return table(header, rows)


_SOUNDNESS: tuple[tuple[str, Callable[[Measured], float], str], ...] = (
    ("tokens/arrival", lambda m: m.tokens_per_arrival, ".2f"),
    ("longest gap p95 ms", lambda m: m.longest_gap_p95_s * 1e3, ".0f"),
    ("server cores", lambda m: m.server_cores, ".2f"),
    ("client cores", lambda m: m.client_cores, ".2f"),
    ("client waits", lambda m: m.client_wait, ".1%"),
    ("other cores", lambda m: m.other_cores, ".2f"),
)


def _starts(report: Report) -> str:
    rows = []
    for server, title in report.titles.items():
        mine = [s for s in report.starts if s.server == server]
        start, idle = median(s.start_s for s in mine), median(s.idle_cores for s in mine)
        memory = median(s.memory_bytes / 2**30 for s in mine)
        rows.append([title, str(len(mine)), f"{start:.1f}", f"{idle:.3f}", f"{memory:.2f}"])
    return table(["", "starts", "first reply after s", "idle cores", "memory GiB (PSS)"], rows)


def warnings(report: Report) -> list[str]:
    """What makes a number doubtful: a busy client, or a machine that others use too."""
    found = []
    for m in report.measurements:
        where = f"round {m.round}, {report.titles[m.server]}, {m.concurrency} at once"
        if m.client_cores > CLIENT_LIMIT_CORES:
            found.append(f"**Doubtful:** {where}: the client itself used {m.client_cores:.2f} cores")
        if m.client_wait > CLIENT_LIMIT_WAIT:
            found.append(
                f"**Doubtful:** {where}: the client waited for a core {m.client_wait:.0%} of the time"
            )
        if m.other_cores > OTHER_LIMIT_CORES:
            found.append(f"**Doubtful:** {where}: others on this machine used {m.other_cores:.2f} cores")
    return found


def write(report: Report, folder: Path) -> None:
    """`results.json` and `results.md` in the output folder."""
    (folder / "results.json").write_text(to_json(report), encoding="utf-8")
    (folder / "results.md").write_text(to_markdown(report), encoding="utf-8")
