"""Scaling laws by the specification that a command line or a report gives: `static:4`, `hpa:waiting=1`.

Laws of other packages are found by the entry point group `tideserve.laws`, each a mapping of names to `Law`s:
those of peers are in `benchmarks.peers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from replay.laws.schedule import Schedule
from replay.laws.static import Static
from replay.sample import Autoscaler
from serve_app.policy.capacity_model import StepTime

_MOST_REPLICAS = 10_000


class SpecError(ValueError):
    """A specification that names no policy, or gives one what it does not take."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What laws may be told of the fleet before it is deployed."""

    fit: StepTime | None = None
    """Step time of the engines, as a profile taken beforehand finds it."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    schedule: Sequence[tuple[float, int]] | None = None
    """(seconds, replicas) of `schedule`."""


Settings = Mapping[str, float]
"""By name; what stands alone after the colon is ''."""


@dataclass(frozen=True, slots=True)
class Law:
    """How a law is written, and made."""

    spec: str
    """How it is written, for error messages."""
    takes: tuple[str, ...]
    make: Callable[[Settings, Surroundings], Autoscaler]


def make(
    spec: str,
    *,
    fit: StepTime | None = None,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 8192,
    schedule: Sequence[tuple[float, int]] | None = None,
) -> Autoscaler:
    """A policy with fresh memory.

    Args:
        spec: A name of `names()`, and after a colon its setting or settings.
        fit: The step time of the engines; `dynamo` needs it.
        max_num_seqs: Most requests of an engine's batch.
        max_num_batched_tokens: Most tokens of an engine's step.
        schedule: What `schedule` asks for.

    Raises:
        SpecError: naming what is wrong, and what exists.
    """
    name, _, rest = spec.strip().partition(":")
    law = _laws().get(name)
    if law is None:
        known = ", ".join(law.spec for law in _laws().values())
        raise SpecError(f"policy {spec!r}: no such baseline; there are {known}")
    settings = _settings(spec, law, rest)
    surroundings = Surroundings(fit, max_num_seqs, max_num_batched_tokens, schedule)
    try:
        return law.make(settings, surroundings)
    except SpecError as error:
        raise SpecError(f"policy {spec!r}: {error}; written {law.spec}") from None


def names() -> tuple[str, ...]:
    """Of the baselines."""
    return tuple(_laws())


def _settings(spec: str, law: Law, rest: str) -> dict[str, float]:
    settings: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, equals, text = part.partition("=")
        key, text = (key.strip(), text.strip()) if equals else ("", key.strip())
        if key not in law.takes or key in settings:
            raise SpecError(f"policy {spec!r}: {part.strip()!r} has no place in it; written {law.spec}")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0.0 < value < math.inf:
            raise SpecError(f"policy {spec!r}: {key or law.spec} = {text!r}: must be a number above 0")
        settings[key] = value
    return settings


def whole(settings: Settings, least: int, most: int, usual: int | None = None) -> int:
    """The setting that stands alone, if it is a whole number within these bounds. Raises SpecError if not."""
    value = settings.get("", usual)
    if value is None:
        raise SpecError("a whole number is needed")
    if value != int(value) or not least <= value <= most:
        raise SpecError(f"{value:g} must be a whole number from {least} to {most}")
    return int(value)


def one(settings: Settings, usual: tuple[str, float]) -> tuple[str, float]:
    """The one setting and its name, or what is usual. Raises SpecError for more than one."""
    if len(settings) > 1:
        raise SpecError("one setting is enough")
    return next(iter(settings.items()), usual)


def _static(settings: Settings, _: Surroundings) -> Autoscaler:
    return Static(whole(settings, 1, _MOST_REPLICAS))


def _schedule(_: Settings, given: Surroundings) -> Autoscaler:
    if given.schedule is None:
        raise SpecError("it needs a timetable")
    return Schedule(given.schedule)


_OWN = {
    "static": Law("static:REPLICAS", ("",), _static),
    "schedule": Law("schedule", (), _schedule),
}


@cache
def _laws() -> Mapping[str, Law]:
    """By name: those of other packages, then the two that are no peer's."""
    found = sorted(entry_points(group="tideserve.laws"), key=lambda entry: entry.name)
    return {name: law for entry in found for name, law in entry.load().items()} | _OWN
