"""Medians and ratios over rounds, as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks.cold_start.measure import SYSTEMS, Measured
from benchmarks.common.markdown import table
from benchmarks.serving_overhead.report import spread

_OTHER_CORES = 0.1
"""A start during which others used more is doubtful."""
_TOTALS: Sequence[tuple[str, Callable[[Measured], float | None], str]] = (
    ("first token s", lambda m: m.first_token_s, ".2f"),
    ("all answered s", lambda m: m.all_answered_s, ".2f"),
    ("CPU s", lambda m: sum(m.cpu_s.values()), ".1f"),
    ("memory GiB (PSS)", lambda m: sum(m.pss_bytes.values()) / 2**30, ".2f"),
    ("`tideserve run` up s", lambda m: m.up_s, ".1f"),
)


def to_markdown(starts: Sequence[Measured], facts: Mapping[str, Mapping[str, str]]) -> str:
    """Tables for people. Ratios are to the system that was started first."""
    lines = [
        f"- {title}: " + ", ".join(f"{k} {v}" for k, v in group.items()) for title, group in facts.items()
    ]
    lines.append("- Each cell: median over rounds; lowest to highest round. Ratios are round by round.")
    parts = ["# Cold start", "\n".join(lines)]
    for replicas in dict.fromkeys(start.replicas for start in starts):
        by_system: dict[str, list[Measured]] = {}
        for start in sorted(starts, key=lambda start: start.round):
            if start.replicas == replicas:
                by_system.setdefault(start.system, []).append(start)
        parts.append(f"## {replicas} replica{'s at once' if replicas > 1 else ''}")
        parts.append(_totals(by_system))
        if any(start.phases_s for mine in by_system.values() for start in mine):
            parts.append(_phases(by_system))
    doubts = [
        f"- **Doubtful:** {SYSTEMS[one.system].title}, {one.replicas} at once, round {one.round}: "
        f"others on this machine used {one.other_cores:.2f} cores"
        for one in starts
        if one.other_cores > _OTHER_CORES
    ]
    return "\n\n".join(filter(None, [*parts, "\n".join(doubts)])) + "\n"


def _totals(by_system: Mapping[str, Sequence[Measured]]) -> str:
    """A row for each system, and one for its ratios to the first, round by round: slow drifts cancel."""
    base, rows = next(iter(by_system.values())), []
    for system, mine in by_system.items():
        title = SYSTEMS[system].title
        cells = [_cell([read(one) for one in mine], form) for _, read, form in _TOTALS]
        rows.append([title, str(len(mine)), *cells])
        if len(mine) == len(base) and mine is not base:
            pairs = list(zip(mine, base, strict=True))
            ratios = [
                _cell([_ratio(read(one), read(b)) for one, b in pairs], ".2f") for _, read, _ in _TOTALS
            ]
            rows.append([f"ratio of {title}", "", *ratios])
    return table(["", "starts", *(title for title, _, _ in _TOTALS)], rows)


def _cell(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return spread(known, form) if known else "-"


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _phases(by_system: Mapping[str, Sequence[Measured]]) -> str:
    columns = {system: mine for system, mine in by_system.items() if any(one.phases_s for one in mine)}
    names = dict.fromkeys(name for mine in columns.values() for one in mine for name in one.phases_s)
    rows = [
        [name, *(f"{median(one.phases_s.get(name, 0.0) for one in mine):.2f}" for mine in columns.values())]
        for name in names
    ]
    return table(["phase, s", *(SYSTEMS[system].title for system in columns)], rows)
