"""Medians, spreads and ratios over rounds, as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from benchmarks.common.markdown import table
from benchmarks.serving_overhead.load import Measured
from benchmarks.serving_overhead.rounds import Results
from benchmarks.serving_overhead.servers import TITLES

_CLIENT_CORES, _CLIENT_WAIT, _OTHER_CORES = 0.5, 0.02, 0.1
"""A measurement beyond one of these is doubtful."""
_METRICS: Sequence[tuple[str, Callable[[Measured], float], str]] = (
    ("tok/s", lambda m: m.tokens_per_s, ",.0f"),
    ("TTFT p50 ms", lambda m: m.ttft_p50_s * 1e3, ".1f"),
    ("TTFT p95 ms", lambda m: m.ttft_p95_s * 1e3, ".1f"),
    ("ITL p50 ms", lambda m: m.itl_p50_s * 1e3, ".2f"),
    ("ITL p95 ms", lambda m: m.itl_p95_s * 1e3, ".2f"),
    ("CPU ms/token", lambda m: m.server_cpu_s_per_token * 1e3, ".3f"),
)


M = TypeVar("M")
"""What was measured of one start or at one level."""


def to_markdown(results: Results, facts: Mapping[str, Mapping[str, str]]) -> str:
    """Tables for people. Ratios are to the first server."""
    parts = head("Serving overhead", facts)
    for level in dict.fromkeys(m.concurrency for m in results.measurements):
        by_server: dict[str, list[Measured]] = {}
        for one in sorted(results.measurements, key=lambda m: m.round):
            if one.concurrency == level:
                by_server.setdefault(one.server, []).append(one)
        parts.append(f"## {level} concurrent request{'s' if level != 1 else ''}")
        parts.append(table(["", *(title for title, _, _ in _METRICS)], compared(by_server, TITLES, _METRICS)))
        parts.append(_processes(by_server))
    parts += ["## Starts", _starts(results), "\n".join(doubts(results))]
    return "\n\n".join(filter(None, parts)) + "\n"


def head(title: str, facts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The title, the facts, and what a cell is."""
    lines = [f"- {name}: " + ", ".join(f"{k} {v}" for k, v in group.items()) for name, group in facts.items()]
    lines.append("- Each cell: median over rounds; lowest to highest round. Ratios are round by round.")
    return [f"# {title}", "\n".join(lines)]


def compared(
    by_name: Mapping[str, Sequence[M]],
    titles: Mapping[str, str],
    metrics: Sequence[tuple[str, Callable[[M], float | None], str]],
) -> list[list[str]]:
    """A row for each name, and one for its ratios to the first, round by round: slow drifts cancel."""
    base, rows = next(iter(by_name.values())), []
    for name, mine in by_name.items():
        rows.append([titles[name], *(_cell([read(one) for one in mine], form) for _, read, form in metrics)])
        if mine is not base and len(mine) == len(base):
            pairs = list(zip(mine, base, strict=True))
            ratios = [[_ratio(read(one), read(other)) for one, other in pairs] for _, read, _ in metrics]
            rows.append([f"ratio of {titles[name]}", *(_cell(values, ".2f") for values in ratios)])
    return rows


def _cell(values: Sequence[float | None], form: str) -> str:
    """The spread of the values that are known; `-` if none is."""
    known = [value for value in values if value is not None]
    return spread(known, form) if known else "-"


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def spread(values: Sequence[float], form: str) -> str:
    """Median; lowest to highest."""
    return f"{median(values):{form}}; {min(values):{form}}-{max(values):{form}}"


def _processes(by_server: Mapping[str, Sequence[Measured]]) -> str:
    """CPU per token by process, the most expensive first; those of less than a microsecond in one row."""
    names = {name for mine in by_server.values() for m in mine for name in m.cpu_s_per_token}
    costs = {
        name: [median(1e6 * m.cpu_s_per_token.get(name, 0.0) for m in mine) for mine in by_server.values()]
        for name in names
    }
    shown = sorted((name for name in names if max(costs[name]) >= 1.0), key=lambda name: -max(costs[name]))
    rows = [[name, *(f"{cost:.0f}" for cost in costs[name])] for name in shown]
    rest = [sum(costs[name][at] for name in names - set(shown)) for at in range(len(by_server))]
    rows.append(["others", *(f"{cost:.0f}" for cost in rest)])
    return table(["CPU µs/token", *(TITLES[server] for server in by_server)], rows)


def _starts(results: Results) -> str:
    rows = []
    for server in dict.fromkeys(one.server for one in results.starts):
        mine = [one for one in results.starts if one.server == server]
        memory = median(one.memory_bytes / 2**30 for one in mine)
        start, idle = median(one.start_s for one in mine), median(one.idle_cores for one in mine)
        rows.append([TITLES[server], str(len(mine)), f"{start:.1f}", f"{idle:.3f}", f"{memory:.2f}"])
    return table(["", "starts", "first reply after s", "idle cores", "memory GiB (PSS)"], rows)


def doubts(results: Results) -> list[str]:
    """The measurements with a busy client, or on a machine that others use too."""
    found = []
    for m in results.measurements:
        where = f"- **Doubtful:** round {m.round}, {TITLES[m.server]}, {m.concurrency} at once"
        if m.client_cores > _CLIENT_CORES:
            found.append(f"{where}: the client itself used {m.client_cores:.2f} cores")
        if m.client_wait > _CLIENT_WAIT:
            found.append(f"{where}: the client waited for a core {m.client_wait:.0%} of the time")
        if m.other_cores > _OTHER_CORES:
            found.append(f"{where}: others on this machine used {m.other_cores:.2f} cores")
    return found
