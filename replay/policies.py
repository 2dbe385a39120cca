"""Baseline policies by the specification that a command line or a report gives: `static:4`, `hpa:waiting=1`.

Other packages add policies by an entry point that names a mapping of names to `PolicySpec`s. The policies of
peers are in `benchmarks.peers`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from replay.defaults import MOST_REPLICAS, STATIC
from replay.sample import Autoscaler, Sample
from serve_app.policy.capacity_model import StepTime


class SpecError(ValueError):
    """A specification that names no policy, or gives a policy a setting that it does not take."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The facts about engines that a policy may know before they are deployed."""

    step: StepTime | None = None
    """The step time, as a profile measured beforehand has it."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192


Settings = Mapping[str, float]
"""The settings of a specification by name; a value without a name has the name ''."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy that a specification can name."""

    spec: str
    """How it is written, for error messages."""
    takes: tuple[str, ...]
    """The names of its settings."""
    make: Callable[[Settings, Engines], Autoscaler]


def make(spec: str, engines: Engines | None = None) -> Autoscaler:
    """Make the policy that `spec` names, with fresh memory.

    Raises SpecError naming what is wrong, and what exists.
    """
    name, _, rest = spec.strip().partition(":")
    kind = _kinds().get(name)
    if kind is None:
        known = ", ".join(kind.spec for kind in _kinds().values())
        raise SpecError(f"policy {spec!r}: no such baseline; there are {known}")
    settings = _settings(spec, kind, rest)
    try:
        return kind.make(settings, engines or Engines())
    except SpecError as error:
        raise SpecError(f"policy {spec!r}: {error}; written {kind.spec}") from None


def names() -> tuple[str, ...]:
    """The names of all baselines."""
    return tuple(_kinds())


def _settings(spec: str, kind: PolicySpec, rest: str) -> dict[str, float]:
    settings: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, equals, text = part.partition("=")
        key, text = (key.strip(), text.strip()) if equals else ("", key.strip())
        if key not in kind.takes or key in settings:
            raise SpecError(f"policy {spec!r}: {part.strip()!r} is no setting of it; written {kind.spec}")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0.0 < value < math.inf:
            raise SpecError(f"policy {spec!r}: {key or kind.spec} = {text!r}: must be a number above 0")
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


class Static:
    """A fixed number of replicas."""

    interval_s = 60.0

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.name = f"static:{replicas}"

    def decide(self, sample: Sample) -> int:
        return self.replicas


_STATIC = PolicySpec("static:REPLICAS", ("",), lambda settings, _: Static(whole(settings, 1, MOST_REPLICAS)))


@cache
def _kinds() -> Mapping[str, PolicySpec]:
    """Every baseline by its name: those of other packages, then static fleets."""
    found = sorted(entry_points(group="tideserve.policies"), key=lambda entry: entry.name)
    return {name: spec for entry in found for name, spec in entry.load().items()} | {STATIC: _STATIC}
