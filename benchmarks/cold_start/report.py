"""Medians and ratios over rounds, as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks.cold_start.measure import SYSTEMS, Measured
from benchmarks.common.markdown import table
from benchmarks.serving_overhead.report import compared, head

_TITLES = {name: system.title for name, system in SYSTEMS.items()}
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
    parts = head("Cold start", facts)
    for replicas in dict.fromkeys(start.replicas for start in starts):
        by_system: dict[str, list[Measured]] = {}
        for start in sorted(starts, key=lambda start: start.round):
            if start.replicas == replicas:
                by_system.setdefault(start.system, []).append(start)
        parts.append(f"## {replicas} replica{'s at once' if replicas > 1 else ''}")
        counts = {_TITLES[system]: str(len(mine)) for system, mine in by_system.items()}
        rows = [
            [name, counts.get(name, ""), *cells] for name, *cells in compared(by_system, _TITLES, _TOTALS)
        ]
        parts.append(table(["", "starts", *(title for title, _, _ in _TOTALS)], rows))
        if any(start.phases_s for mine in by_system.values() for start in mine):
            parts.append(_phases(by_system))
    doubts = [
        f"- **Doubtful:** {SYSTEMS[one.system].title}, {one.replicas} at once, round {one.round}: "
        f"others on this machine used {one.other_cores:.2f} cores"
        for one in starts
        if one.other_cores > _OTHER_CORES
    ]
    return "\n\n".join(filter(None, [*parts, "\n".join(doubts)])) + "\n"


def _phases(by_system: Mapping[str, Sequence[Measured]]) -> str:
    columns = {system: mine for system, mine in by_system.items() if any(one.phases_s for one in mine)}
    names = dict.fromkeys(name for mine in columns.values() for one in mine for name in one.phases_s)
    rows = [
        [name, *(f"{median(one.phases_s.get(name, 0.0) for one in mine):.2f}" for mine in columns.values())]
        for name in names
    ]
    return table(["phase, s", *(SYSTEMS[system].title for system in columns)], rows)
