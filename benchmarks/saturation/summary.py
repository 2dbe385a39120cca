"""The tables: medians over the rounds, and ratios round by round."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
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


def us_per_token(window: Window, names: Iterable[str]) -> float:
    """CPU of these processes for each token, in microseconds."""
    return 1e6 * sum(window.cpu_s.get(name, 0.0) for name in names) / window.tokens


def per_core(window: Window, name: str) -> float:
    """Tokens per second that a core spent in this process carries."""
    return window.tokens / window.cpu_s[name]


def _groups(found: Sequence[Measured]) -> dict[tuple[int, str], list[Measured]]:
    """By number of streams and system."""
    groups: dict[tuple[int, str], list[Measured]] = {}
    for one in sorted(found, key=lambda one: (one.streams, list(FRONT_ENDS).index(one.system))):
        groups.setdefault((one.streams, one.system), []).append(one)
    return groups


def _ratio(found: Sequence[Measured], ones: Sequence[Measured], pick: Callable[[Measured], Window]) -> str:
    """Tokens per second and core of the front end, as a multiple of the first system's."""
    first = next(iter(FRONT_ENDS))

    def figure(system: str, number: int) -> float | None:
        values = [
            per_core(pick(one), FRONT_ENDS[system])
            for one in found
            if (one.system, one.round, one.streams) == (system, number, ones[0].streams)
        ]
        return median(values) if values else None

    system = ones[0].system
    pairs = [(figure(system, number), figure(first, number)) for number in {one.round for one in ones}]
    ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
    return f"{median(ratios):.2f}" if ratios and system != first else ""


def rates_table(found: Sequence[Measured], pick: Callable[[Measured], Window | None]) -> str:
    """What `pick` chooses of each measurement; those for which it chooses nothing are left out."""
    chosen = [(one, window) for one in found if (window := pick(one)) is not None]
    windows = {id(one): window for one, window in chosen}
    known = [one for one, _ in chosen]
    rows = []
    for (streams, system), ones in _groups(known).items():
        front = FRONT_ENDS[system]
        named = (front, INGRESS, HAPROXY, ENGINE_CORE)
        here = [windows[id(one)] for one in ones]
        others = {name for window in here for name in window.cpu_s} - set(named)

        def cell(form: str, read: Callable[[Window], float], here: list[Window] = here) -> str:
            return format(median(map(read, here)), form)

        def cost(names: Collection[str], here: list[Window] = here) -> str:
            if not any(name in window.cpu_s for window in here for name in names):
                return ""
            return cell(".1f", lambda window: us_per_token(window, names), here)

        rows.append(
            [
                str(streams),
                system,
                cell(",.0f", lambda window: window.tokens_per_s),
                cell(".2f", lambda window: window.tokens_per_event),
                cell(",.0f", partial(per_core, name=front)),
                _ratio(known, ones, lambda one: windows[id(one)]),
                cell(",.0f", partial(per_core, name=INGRESS)) if INGRESS in here[0].cpu_s else "",
                *(cost([name]) for name in named),
                cost(others),
            ]
        )
    return table(_HEAD, rows)


def memory_table(found: Sequence[Measured]) -> str:
    """Memory with the most streams open, each time that so many were: does it grow from time to time?"""
    most = max(one.streams for one in found)
    rows = []
    for (streams, system), ones in _groups(found).items():
        for name in (FRONT_ENDS[system], INGRESS, HAPROXY):
            times: dict[int, list[float]] = {}
            for one in ones:
                times.setdefault(one.round, []).append(one.pss.get(name, 0) / 2**20)
            if streams == most and any(map(any, times.values())):
                rounds = zip(*times.values(), strict=False)
                rows.append([system, name, " → ".join(f"{median(values):.1f}" for values in rounds)])
    return table(
        ["system", "process", f"PSS in MiB, {most} streams open, time after time"], rows, numbers=False
    )
