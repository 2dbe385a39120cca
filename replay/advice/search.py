"""A pattern search over the knobs, one at a time. Pure, except for the function that evaluates.

Every knob is moved up and down its ladder, by two rungs and then by one. A move that helps is kept, and
repeated in the same direction while it helps. The search ends when no single move helps, or when the time is
over. Seeds are the same for all configurations, so that their noise cancels.

Source of the method: R. Hooke and T. A. Jeeves, "Direct search solution of numerical and statistical
problems", J. ACM 8(2), 1961.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from replay.advice.score import Outcome, Score, better
from serve_app.settings.knobs import Knobs, overlay
from serve_app.settings.settings_error import SettingsError, shown

_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1000)

LADDERS: Mapping[str, Sequence[float | int | bool]] = {
    "max_replicas": _COUNTS[1:],
    "headroom": (0.0, 0.15, 0.3, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0),
    "forecast_quantile": (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0),
    "forecast_window_s": (300.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0, 5400.0, 7200.0, 10_800.0),
    "downscale_delay_s": (15.0, 30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 450.0, 600.0, 900.0),
    "downscale_to_zero_delay_s": (30.0, 60.0, 120.0, 180.0, 300.0, 450.0, 600.0, 900.0, 1800.0, 3600.0),
    "upscale_delay_s": (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    "queue_target_per_replica": (1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0),
    "min_replicas": _COUNTS,
    "background_backlog_s": (
        1800.0,
        3600.0,
        7200.0,
        10_800.0,
        14_400.0,
        21_600.0,
        28_800.0,
        43_200.0,
        86_400.0,
    ),
    "background_keep_s": (0.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0),
    "forecast": (False, True),
}
"""In the order of the search: first the bound on the others, then the knobs that change the cost most."""

BACKGROUND = ("background_backlog_s", "background_keep_s")
"""The knobs that change nothing without requests of the lane `background`."""

DEFAULT = tuple(name for name in LADDERS if name != "forecast")
"""The knobs that are searched by default."""


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The knobs to search, in the order in which they are tried.

    Raises SettingsError for a name that is not searched, or none at all.
    """
    problems = [
        f"knobs = {shown(name)}: must be of {', '.join(LADDERS)}" for name in names if name not in LADDERS
    ]
    if not names:
        problems.append(f"knobs: at least one is needed, of {', '.join(LADDERS)}")
    if problems:
        raise SettingsError(problems)
    return tuple(name for name in LADDERS if name in names)


def ladder(name: str, start: Knobs) -> tuple[Any, ...]:
    """The values of one knob, including that of `start`; None comes first."""
    values: list[Any] = list(LADDERS[name])
    current = getattr(start, name)
    if current is None:
        values.insert(0, None)
    elif current not in values:
        insort(values, current)
    return tuple(values)


def matters(name: str, knobs: Knobs) -> bool:
    """Whether the knob changes anything with the others as they are."""
    if name in ("downscale_to_zero_delay_s", "background_keep_s"):
        return knobs.min_replicas == 0
    if name in ("forecast_quantile", "forecast_window_s"):
        return knobs.forecast
    return True


def idle(name: str, old: Any, new: Any, peak: float) -> bool:
    """Whether a move changes nothing because it stays above the peak number of replicas."""
    return name == "max_replicas" and min(old, new) > peak


def with_value(knobs: Knobs, name: str, value: Any) -> Knobs | None:
    """`knobs` with one of them changed; None if the knobs would contradict each other."""
    try:
        return overlay(knobs, {name: value})
    except ValidationError:
        return None


def changes(old: Knobs, new: Knobs) -> dict[str, Any]:
    """The knobs that differ, with their new values."""
    return {
        name: getattr(new, name) for name in Knobs.model_fields if getattr(new, name) != getattr(old, name)
    }


Evaluate = Callable[[Knobs, int], Outcome]
"""Evaluates a configuration with a seed."""

LEAST_GAIN = 0.005
"""A knob is not moved for less than half a per cent of the GPU-seconds."""
_HOPELESS_COST = 0.01
"""A configuration that costs this share more than the best on its first seed is dropped."""
_HOPELESS_ATTAINMENT = 0.01
"""While no configuration meets the goal, one that attains this much less is dropped."""
_STEPS = (2, 1)


@dataclass(slots=True)
class Search:
    """A search under way, and what it has found.

    Args:
        evaluate: Called once for each configuration and seed.
        start: The configuration to begin with and to compare with.
        start_score: Its score, on the same seeds.
        names: The knobs to move, in the order of the search.
        seeds: At least one.
        goal: Attainment that every seed is to reach.
        time_left: Whether another replay may begin.
        show: Called with every configuration tried.
    """

    evaluate: Evaluate
    start: Knobs
    start_score: Score
    names: Sequence[str]
    seeds: Sequence[int]
    goal: float
    time_left: Callable[[], bool]
    show: Callable[[Tried], None] = lambda _: None
    best: Knobs = field(init=False)
    best_score: Score = field(init=False)
    tried: int = 0
    """Configurations besides `start`."""
    dropped: int = 0
    """Configurations that were replayed with one seed only."""
    exhausted: bool = False
    """Whether the search ended because no single move helps, rather than by time."""
    _known: dict[str, list[Outcome]] = field(default_factory=dict)

    def run(self) -> None:
        """Search to the end, or as far as there is time."""
        self.best, self.best_score = self.start, self.start_score
        self._known = {self.start.model_dump_json(): list(self.start_score.outcomes)}
        try:
            for step in _STEPS:
                while self._pass(step):
                    pass
            self._simplify()
            self.exhausted = True
        except _TimeIsOverError:
            pass

    def _pass(self, step: int) -> bool:
        """Every knob once, both ways; whether any move helped."""
        helped = False
        for name in self.names:
            if matters(name, self.best):
                helped = (self._move(name, step) or self._move(name, -step)) or helped
        return helped

    def _move(self, name: str, step: int) -> bool:
        """Move one knob for as long as that helps."""
        values = ladder(name, self.start)
        helped = False
        while True:
            old, peak = getattr(self.best, name), self.best_score.spread("peak").high
            at = values.index(old) + step
            while 0 <= at < len(values) and idle(name, old, values[at], peak):
                at += step
            if not 0 <= at < len(values):
                return helped
            candidate = with_value(self.best, name, values[at])
            if candidate is None or not self._try(candidate, LEAST_GAIN):
                return helped
            helped = True

    def _simplify(self) -> None:
        """Undo each change that gains nothing any more, because a later change made it idle."""
        for name in list(changes(self.start, self.best)):
            candidate = with_value(self.best, name, getattr(self.start, name))
            if candidate is not None and candidate != self.best:
                self._try(candidate, -LEAST_GAIN)

    def _try(self, candidate: Knobs, gain: float) -> bool:
        """Whether the candidate is the new best. A known candidate is not, unless it undoes a change."""
        undoes = gain < 0
        outcomes = self._known.setdefault(candidate.model_dump_json(), [])
        if outcomes and not undoes:
            return False
        for seed in self.seeds[len(outcomes) :]:
            if not self.time_left():
                raise _TimeIsOverError
            outcomes.append(self.evaluate(candidate, seed))
            self.tried += len(outcomes) == 1
            if len(outcomes) == 1 and len(self.seeds) > 1 and self._hopeless(outcomes[0], undoes):
                self.dropped += 1
                self._report(candidate, Score(tuple(outcomes)), dropped=True)
                return False
        score = Score(tuple(outcomes))
        # To undo a change may cost a little, but not the goal.
        taken = better(score, self.best_score, self.goal, gain)
        if taken:
            self.best, self.best_score = candidate, score
        self._report(candidate, score, dropped=False)
        return taken

    def _hopeless(self, first: Outcome, undoes: bool) -> bool:
        """Whether the other seeds need no replay."""
        rival = self.best_score.outcomes[0]
        if first == rival and not undoes:
            return True  # the knob changes nothing here
        if not self.best_score.meets(self.goal):
            return first.attainment < rival.attainment - _HOPELESS_ATTAINMENT
        if first.attainment < self.goal or first.late:
            return True
        return first.gpu_seconds > rival.gpu_seconds * (1.0 + _HOPELESS_COST)

    def _report(self, candidate: Knobs, score: Score, *, dropped: bool) -> None:
        self.show(Tried(changes(self.start, candidate), score, dropped, self.best_score, self.tried))


@dataclass(frozen=True, slots=True)
class Tried:
    """A configuration that was tried, for a display."""

    changes: dict[str, Any]
    score: Score
    """The score; of one seed only, if the configuration was dropped."""
    dropped: bool
    best: Score
    count: int
    """Configurations so far."""


class _TimeIsOverError(Exception):
    """Ends the search wherever it is."""
