"""Scaling laws by the specification that a command line or a report gives: `static:4`, `hpa:waiting=1`.

Other packages add laws by an entry point of the group `tideserve.policies`, which names a mapping of names to
`Law`s. Those of peers are `benchmarks.peers.policies.POLICIES`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from replay.defaults import MOST_REPLICAS, STATIC
from replay.laws.static import Static
from replay.sample import Autoscaler
from serve_app.policy.capacity_model import StepTime


class SpecError(ValueError):
    """A specification that names no policy, or gives one what it does not take."""


@dataclass(frozen=True, slots=True)
class Engines:
    """What a law may know of the engines before they are deployed."""

    step: StepTime | None = None
    """Their step time, as a profile taken beforehand finds it."""
    max_num_seqs: int = 64
    """Most requests of an engine's batch."""
    max_num_batched_tokens: int = 8192
    """Most tokens of an engine's step."""


Settings = Mapping[str, float]
"""The settings of a specification by name; a value without a name has the name ''."""


@dataclass(frozen=True, slots=True)
class Law:
    """A law that a specification can name."""

    spec: str
    """How it is written, for error messages."""
    takes: tuple[str, ...]
    """The names of its settings."""
    make: Callable[[Settings, Engines], Autoscaler]


def make(spec: str, engines: Engines | None = None) -> Autoscaler:
    """Make the policy that `spec` names, with fresh memory.

    Args:
        spec: A name of `names()`, and after a colon its setting or settings.
        engines: What it may know of the engines; `dynamo` needs their step time.

    Raises:
        SpecError: naming what is wrong, and what exists.
    """
    name, _, rest = spec.strip().partition(":")
    law = _laws().get(name)
    if law is None:
        known = ", ".join(law.spec for law in _laws().values())
        raise SpecError(f"policy {spec!r}: no such baseline; there are {known}")
    settings = _settings(spec, law, rest)
    try:
        return law.make(settings, engines or Engines())
    except SpecError as error:
        raise SpecError(f"policy {spec!r}: {error}; written {law.spec}") from None


def names() -> tuple[str, ...]:
    """The names of all laws."""
    return tuple(_laws())


def _settings(spec: str, law: Law, rest: str) -> dict[str, float]:
    settings: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, equals, text = part.partition("=")
        key, text = (key.strip(), text.strip()) if equals else ("", key.strip())
        if key not in law.takes or key in settings:
            raise SpecError(f"policy {spec!r}: {part.strip()!r} is no setting of it; written {law.spec}")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0.0 < value < math.inf:
            raise SpecError(f"policy {spec!r}: {key or law.spec} = {text!r}: must be a number above 0")
        settings[key] = value
    return settings


def whole(settings: Settings, least: int, most: int, usual: int | None = None) -> int:
    """The setting without a name, a whole number within these bounds. Raises SpecError for any other."""
    value = settings.get("", usual)
    if value is None:
        raise SpecError("a whole number is needed")
    if value != int(value) or not least <= value <= most:
        raise SpecError(f"{value:g} must be a whole number from {least} to {most}")
    return int(value)


def one(settings: Settings, usual: tuple[str, float]) -> tuple[str, float]:
    """The name and value of the only setting; `usual` without one. Raises SpecError for more than one."""
    if len(settings) > 1:
        raise SpecError("one setting is enough")
    return next(iter(settings.items()), usual)


_STATIC = Law("static:REPLICAS", ("",), lambda settings, _: Static(whole(settings, 1, MOST_REPLICAS)))


@cache
def _laws() -> Mapping[str, Law]:
    """Every law by its name: those of other packages, then static fleets."""
    found = sorted(entry_points(group="tideserve.policies"), key=lambda entry: entry.name)
    return {name: law for entry in found for name, law in entry.load().items()} | {STATIC: _STATIC}
