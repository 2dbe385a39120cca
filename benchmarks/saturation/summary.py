"""The tables: medians over the rounds, and ratios round by round."""

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median

from benchmarks.chaos.roles import ENGINE_CORE, HAPROXY, INGRESS
from benchmarks.common.markdown import table
from benchmarks.saturation.measure import Measured, Window
from benchmarks.saturation.systems import FRONT_ENDS

_HEAD = (
    *("streams", "system", "tok/s", "tok/event"),
    *("front end tok/s per core", "ratio", "ingress tok/s per core"),
    *(f"{name} µs/tok" for name in ("front end", "ingress", "HAProxy", "stub core", "rest")),
)


_FIRST = next(iter(FRONT_ENDS))

Pick = Callable[[Measured], Window | None]


def rates_table(found: Sequence[Measured], pick: Pick) -> str:
    """What `pick` chooses of each measurement; those for which it chooses nothing are left out."""
    rounds: dict[tuple[int, str], dict[int, list[Window]]] = {}
    for one in found:
        if (window := pick(one)) is not None:
            rounds.setdefault((one.streams, one.system), {}).setdefault(one.round, []).append(window)
    return table(
        _HEAD,
        [
            _row(streams, system, rounds[streams, system], rounds.get((streams, _FIRST), {}))
            for streams, system in sorted(rounds, key=lambda key: (key[0], key[1] != _FIRST))
        ],
    )


def _row(
    streams: int, system: str, rounds: Mapping[int, list[Window]], first: Mapping[int, list[Window]]
) -> list[str]:
    """A system's row; `first` has what the first system did with as many streams, by round too."""
    windows = [window for each in rounds.values() for window in each]
    front = FRONT_ENDS[system]
    named = (front, INGRESS, HAPROXY, ENGINE_CORE)
    others = {name for window in windows for name in window.cpu_s} - set(named)
    ratios = [
        _per_core(rounds[number], front) / _per_core(first[number], FRONT_ENDS[_FIRST])
        for number in rounds.keys() & first.keys()
    ]
    return [
        str(streams),
        system,
        f"{median(window.tokens_per_s for window in windows):,.0f}",
        f"{median(window.tokens_per_event for window in windows):.2f}",
        f"{_per_core(windows, front):,.0f}",
        f"{median(ratios):.2f}" if ratios and system != _FIRST else "",
        f"{_per_core(windows, INGRESS):,.0f}" if INGRESS in windows[0].cpu_s else "",
        *(_cost(windows, [name]) for name in named),
        _cost(windows, others),
    ]


def _per_core(windows: Sequence[Window], name: str) -> float:
    """Tokens per second that a core spent in the process `name` carries."""
    return median(window.tokens / window.cpu_s[name] for window in windows)


def _cost(windows: Sequence[Window], names: Collection[str]) -> str:
    """CPU of these processes for each token, in microseconds; empty if there are none."""
    if not any(name in window.cpu_s for window in windows for name in names):
        return ""
    sums = ((window.tokens, sum(window.cpu_s.get(name, 0.0) for name in names)) for window in windows)
    return f"{median(1e6 * cpu_s / tokens for tokens, cpu_s in sums):.1f}"


def memory_table(found: Sequence[Measured]) -> str:
    """Memory with the most streams open, each time that so many were: does it grow from time to time?"""
    most = max(one.streams for one in found)
    times: dict[tuple[str, str], dict[int, list[float]]] = {}
    for one in found:
        for name in (FRONT_ENDS[one.system], INGRESS, HAPROXY):
            if one.streams == most and name in one.pss:
                by_round = times.setdefault((one.system, name), {})
                by_round.setdefault(one.round, []).append(one.pss[name] / 2**20)
    rows = [
        [*names, " → ".join(f"{median(values):.1f}" for values in zip(*by_round.values(), strict=False))]
        for names, by_round in times.items()
    ]
    head = ["system", "process", f"PSS in MiB, {most} streams open, time after time"]
    return table(head, rows, numbers=False)
