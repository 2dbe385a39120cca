"""The best that a policy can do if it knows exactly the replicas that every past minute needed.

`python -m benchmarks.autoscaling.known_needs` writes known_needs.md beside this file, which the page links
to. A minute's need is the fewest replicas with which it is attained, found by replaying every static
fleet. The policies searched hold a quantile of the needs of the last minutes, times a factor, and at least
the last need. They learn nothing wrongly and start replicas in no time: what they cannot do, no policy
that goes by the same past can be asked for.
"""

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.autoscaling.options import parse
from benchmarks.autoscaling.summary import BURSTY_GOAL, SMOOTH_GOAL
from benchmarks.autoscaling.targets import MEAN_RATIO
from benchmarks.autoscaling.windows import MINUTE_S, Window, find_windows
from replay.defaults import GOAL
from replay.run import replay

_PAGE = Path(__file__).with_name("known_needs.md")
_WATCHED = 5
"""Minutes without a scale-down at the beginning, and of silence before nothing is held: as ours has it."""
_STARTS = (0, 1, 3)
"""Minutes."""
_ENOUGH = 3
"""So many fleets in a row that attain every minute end the search for needs."""

Ints = npt.NDArray[np.int64]


class Setting(NamedTuple):
    """One policy of the family."""

    minutes: int
    """The number of past minutes that count."""
    quantile: float
    by: str
    """The weight of a minute: its `requests`, or equal (`minutes`)."""
    factor: float


@dataclass(frozen=True, slots=True)
class Needs:
    """One window, minute by minute."""

    window: Window
    replicas: Ints
    """The fewest with which, and with all more, the minute is attained; 0 without requests."""
    requests: Ints
    initial: int
    """Replicas at the start."""
    oracle: float
    static: float
    """GPU-seconds."""

    @property
    def goal(self) -> float:
        """The attainment wanted."""
        return SMOOTH_GOAL if self.window.smooth else BURSTY_GOAL


def grid() -> Iterable[Setting]:
    """All settings that are searched."""
    return (
        Setting(*values)
        for values in itertools.product(
            (2, 3, 5, 10, 15, 20, 30, 45, 60, 120, 10_000),
            (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 1.0),
            ("requests", "minutes"),
            (1.0, 1.1, 1.2, 1.35, 1.5),
        )
    )


def needs_of(attained: npt.NDArray[np.bool_], requests: Ints) -> Ints:
    """Replicas by minute, from [fleet of so many and one, minute]: whether it was attained."""
    fleets = np.arange(1, len(attained) + 1)[:, None]
    missed_up_to = np.where(attained, 0, fleets).max(axis=0)
    return np.where(requests > 0, missed_up_to + 1, 0).astype(np.int64)


def hold(needs: Needs, setting: Setting, start: int = 0) -> tuple[float, float]:
    """Attainment and GPU-seconds of a policy of the family whose replicas start in `start` minutes."""
    asked: list[int] = []
    attained = 0
    for minute, need in enumerate(needs.replicas):
        past = slice(max(0, minute - setting.minutes), minute)
        held = _held(needs.replicas[past], needs.requests[past], setting)
        if minute < _WATCHED:
            held = max(held, needs.initial)
        elif not needs.requests[minute - _WATCHED : minute].any():
            held = 0
        asked.append(held)
        ready = min(asked[-start - 1 :])
        attained += int(needs.requests[minute]) * (ready >= need)
    return attained / int(needs.requests.sum()), sum(asked) * MINUTE_S


def _held(replicas: Ints, requests: Ints, setting: Setting) -> int:
    busy = requests > 0
    if not busy.any():
        return 0
    weights = requests[busy] if setting.by == "requests" else np.ones(int(busy.sum()))
    order = np.argsort(replicas[busy], kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    place = min(int(np.searchsorted(share, setting.quantile - 1e-12)), len(order) - 1)
    quantile = replicas[busy][order][place]
    return int(max(math.ceil(setting.factor * quantile - 1e-9), replicas[-1]))


def least(needs: Needs) -> float:
    """GPU-seconds of holding exactly what each minute needs, with starts and drains that cost nothing.

    The minutes with the most GPU-seconds per request are given up, as far as `GOAL` allows.
    """
    busy = np.flatnonzero(needs.requests)
    spare = (1.0 - GOAL) * needs.requests.sum()
    cost = needs.replicas.sum()
    for minute in busy[np.argsort(-needs.replicas[busy] / needs.requests[busy], kind="stable")]:
        if needs.requests[minute] <= spare:
            spare -= needs.requests[minute]
            cost -= needs.replicas[minute]
    return float(cost * MINUTE_S)


def measure(window: Window) -> Needs:
    """Replay the window on every static fleet, until larger ones attain all of it."""
    rows: list[npt.NDArray[np.bool_]] = []
    while len(rows) < _ENOUGH or not all(row.all() for row in rows[-_ENOUGH:]):
        result = replay(window.open(), policy=f"static:{len(rows) + 1}")
        rows.append(result.windows.attained >= 1.0)
        print(f"{window.name}: {len(rows)} replicas, {result.attainment:.1%}", file=sys.stderr, flush=True)
    requests = result.windows.requests.astype(np.int64)
    oracle, static = (replay(window.open(), policy=policy) for policy in ("oracle", "static"))
    return Needs(
        window,
        needs_of(np.array(rows), requests),
        requests,
        replay(window.open(), policy="ours").timeline.ready.astype(int)[0],
        oracle.gpu_seconds.total,
        static.gpu_seconds.total,
    )


class Found(NamedTuple):
    """A setting and what it came to on all windows."""

    setting: Setting
    short: float
    """Sum over the windows of what is missing to their goals."""
    smooth: float
    """Mean over the smooth windows of GPU-seconds over the oracle's."""
    shown: str


def search(windows: Sequence[Needs]) -> list[Found]:
    """Every setting on every window."""
    found = []
    for setting in grid():
        held = [(each, *hold(each, setting)) for each in windows]
        found.append(
            Found(
                setting,
                sum(max(0.0, each.goal - attained) for each, attained, _ in held),
                float(np.mean([cost / each.oracle for each, _, cost in held if each.window.smooth])),
                ", ".join(
                    f"{each.window.name} {cost / (each.oracle if each.window.smooth else each.static):.2f}"
                    f"@{100 * attained:.1f}"
                    for each, attained, cost in held
                ),
            )
        )
    return found


def oracle_text(windows: Sequence[Needs]) -> str:
    """How far the oracle may be from the optimum, for the page."""
    shares = ", ".join(f"{each.window.name} {least(each) / each.oracle:.2f}" for each in windows)
    return f"""### How far the oracle may be from the optimum

What each minute needs, held for that minute alone, with starts and drains that cost nothing, over the
oracle's GPU-seconds:
{shares}.
The true optimum pays for its starts, so it is above this, unless it follows the
seconds within a minute more closely than the oracle's slots do.
"""


def text(found: Sequence[Found]) -> str:
    """How far the past can tell, for the page."""
    meeting = [each for each in found if not each.short]
    within = [each for each in found if each.smooth <= MEAN_RATIO]
    lines = [
        "### How far the past can tell",
        "",
        f"{len(found):,} policies of one family that know exactly how many replicas every minute that is",
        "over had needed, and whose replicas start in no time: each holds a quantile of the needs of some",
        "last minutes, times a factor, and at least the last need. Smooth windows over the oracle, bursty",
        "ones over the static fleet, @ attainment % (`python -m benchmarks.autoscaling.known_needs`):",
        "",
        f"- {len(meeting)} of them meet the attainment wanted on every window.",
    ]
    if meeting:
        best = min(meeting, key=lambda each: each.smooth)
        lines[-1] += f" The cheapest costs {best.smooth:.2f} times the oracle on the smooth windows"
        lines[-1] += f" ({_words(best.setting)}): {best.shown}."
    lines.append(f"- {len(within)} cost at most {MEAN_RATIO:g} on the smooth windows.")
    if within:
        near = min(within, key=lambda each: each.short)
        lines[-1] += f" The nearest to the attainment wanted ({_words(near.setting)}): {near.shown}."
    return "\n".join(lines) + "\n"


def starts_text(windows: Sequence[Needs]) -> str:
    """What such policies can do whose replicas take minutes to start, for the page."""
    smooth = [each for each in windows if each.window.smooth]
    lines = [
        "### How far the past can tell while replicas start",
        "",
        "The same policies on the smooth windows alone, with replicas that are ready some minutes after they",
        "are asked for: how many of the settings attain what is wanted on each window, what the cheapest of",
        "them costs over the oracle, and what each window's own cheapest one would, if it were known before:",
        "",
        "| start | settings that attain it | cheapest, mean | each window's own |",
        "|---|---|---|---|",
    ]
    for start in _STARTS:
        held = np.array([[hold(each, setting, start) for each in smooth] for setting in grid()])
        costs = held[:, :, 1] / [each.oracle for each in smooth]
        meets = held[:, :, 0] >= [each.goal for each in smooth]
        means = costs[meets.all(axis=1)].mean(axis=1)
        own = np.where(meets, costs, math.inf).min(axis=0)
        each_own = [
            f"{each.window.name} {_least(cost)}" for each, cost in zip(smooth, own.tolist(), strict=True)
        ]
        cheapest = _least(min(means.tolist(), default=math.inf))
        lines.append(f"| {start} min | {len(means):,} | {cheapest} | {', '.join(each_own)} |")
    return "\n".join(lines) + "\n"


def _least(cost: float) -> str:
    return f"{cost:.2f}" if cost < math.inf else "none attains it"


def _words(setting: Setting) -> str:
    return (
        f"{setting.minutes} minutes, quantile {setting.quantile:g} by {setting.by}, times {setting.factor:g}"
    )


if __name__ == "__main__":
    options = parse(sys.argv[1:])
    measured = [measure(each) for each in find_windows(options.windows, None, options.only)]
    parts = text(search(measured)), starts_text(measured), oracle_text(measured)
    _PAGE.write_text("\n".join(parts), encoding="utf-8")
    print(_PAGE.read_text(encoding="utf-8"))
