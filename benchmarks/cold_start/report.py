"""Medians and ratios over rounds, as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks.cold_start.measure import SYSTEMS, Measured
from benchmarks.common.markdown import table

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
    lines.append(
        "- Medians, with lowest and highest; then the median of the round-by-round ratios to the first."
    )
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
    parts += [
        f"- **Doubtful:** {SYSTEMS[one.system].title}, {one.replicas} at once, round {one.round}: "
        f"others on this machine used {one.other_cores:.2f} cores"
        for one in starts
        if one.other_cores > _OTHER_CORES
    ]
    return "\n\n".join(parts) + "\n"


def _totals(by_system: Mapping[str, Sequence[Measured]]) -> str:
    base = next(iter(by_system.values()))
    rows = [
        [SYSTEMS[system].title, str(len(mine)), *(_cell(mine, base, read, form) for _, read, form in _TOTALS)]
        for system, mine in by_system.items()
    ]
    return table(["", "starts", *(title for title, _, _ in _TOTALS)], rows)


def _cell(
    mine: Sequence[Measured], base: Sequence[Measured], read: Callable[[Measured], float | None], form: str
) -> str:
    values = [value for one in mine if (value := read(one)) is not None]
    if not values:
        return "-"
    spread = f" ({min(values):{form}}-{max(values):{form}})" if len(values) > 1 else ""
    bases = [value for one in base if (value := read(one))]
    if mine is base or len(bases) != len(values):
        return f"{median(values):{form}}{spread}"
    # Round by round: slow drifts of the machine cancel out.
    ratio = median(one / other for one, other in zip(values, bases, strict=True))
    return f"{median(values):{form}}{spread}, ratio {ratio:.2f}"


def _phases(by_system: Mapping[str, Sequence[Measured]]) -> str:
    columns = {system: mine for system, mine in by_system.items() if any(one.phases_s for one in mine)}
    names = dict.fromkeys(name for mine in columns.values() for one in mine for name in one.phases_s)
    rows = [
        [name, *(f"{median(one.phases_s.get(name, 0.0) for one in mine):.2f}" for mine in columns.values())]
        for name in names
    ]
    return table(["phase, s", *(SYSTEMS[system].title for system in columns)], rows)
