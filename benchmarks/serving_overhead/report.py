"""Medians, spreads and ratios over rounds, as Markdown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

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


def to_markdown(results: Results, facts: Mapping[str, Mapping[str, str]]) -> str:
    """Tables for people. Ratios are to the first server."""
    lines = [
        f"- {title}: " + ", ".join(f"{k} {v}" for k, v in group.items()) for title, group in facts.items()
    ]
    lines.append("- Each cell: median over rounds; lowest to highest round. Ratios are round by round.")
    parts = ["# Serving overhead", "\n".join(lines)]
    for level in dict.fromkeys(m.concurrency for m in results.measurements):
        by_server = _by_server(results, level)
        parts.append(f"## {level} concurrent request{'s' if level != 1 else ''}")
        rows = list(_rows(by_server))
        parts.append(table(["", *(title for title, _, _ in _METRICS)], rows))
        parts.append(_processes(by_server))
    parts += ["## Starts", _starts(results), "\n".join(doubts(results))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _by_server(results: Results, level: int) -> dict[str, list[Measured]]:
    """The measurements of one level by server, each by round."""
    found: dict[str, list[Measured]] = {}
    for one in sorted(results.measurements, key=lambda m: m.round):
        if one.concurrency == level:
            found.setdefault(one.server, []).append(one)
    return found


def _rows(by_server: Mapping[str, Sequence[Measured]]) -> Iterator[list[str]]:
    """A row for each server, and one for its ratios to the first, round by round: slow drifts cancel."""
    base = next(iter(by_server.values()))
    for server, mine in by_server.items():
        yield [TITLES[server], *(spread([read(m) for m in mine], form) for _, read, form in _METRICS)]
        if mine is not base:
            yield [f"ratio of {TITLES[server]}", *(_ratios(mine, base, read) for _, read, _ in _METRICS)]


def _ratios(mine: Sequence[Measured], base: Sequence[Measured], read: Callable[[Measured], float]) -> str:
    if not all(read(b) for b in base):
        return "-"
    return spread([read(m) / read(b) for m, b in zip(mine, base, strict=True)], ".2f")


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
