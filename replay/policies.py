"""Baseline policies: the sample that they see, and their specifications, such as `static:4`, `hpa:waiting=1`.

Other packages add policies by an entry point that names a mapping of names to `PolicySpec`s. The policies of
peers are in `benchmarks.peers`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Protocol

import numpy as np

from replay.defaults import MOST_REPLICAS, STATIC
from serve_app.policy.capacity_model import StepTime
from traces.trace import Floats, Ints


def _no_numbers() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one moment, with the metrics of a serving system. Arrays are by ready replica."""

    at: float
    """Seconds since the start of the replay."""
    target: int
    """Replicas asked for."""
    ready: int
    """Replicas that take requests, without draining and starting ones."""
    held: int
    """Requests queued in the ingress because no replica is ready."""
    running: Floats
    """Requests in each engine's batch."""
    waiting: Floats
    """Requests in each engine's queue."""
    kv_usage: Floats
    """Share of each KV cache in use, 0 to 1."""
    kv_cache_tokens: float
    """Tokens that one replica's KV cache holds."""
    # Totals since the start, of the whole fleet.
    arrivals: float
    """Requests that reached the ingress."""
    arrived_tokens: float
    """Their prompt tokens."""
    first_tokens: float
    """Requests that got their first token, and the sum of their TTFTs in seconds."""
    ttft_sum_s: float
    finished: float
    """Requests that ended, their prompt and their generated tokens."""
    finished_prompt_tokens: float
    finished_output_tokens: float
    itl_count: float
    """Inter-token latencies and their sum in seconds."""
    itl_sum_s: float
    replicas: Ints = field(default_factory=_no_numbers)
    """The number of each ready replica, in the order of the arrays; a number is never used twice. Empty if
    unknown: policies that keep a history by replica then use the index in the arrays."""

    @property
    def ongoing(self) -> float:
        """Requests that run, wait in engines or are queued in the ingress."""
        return float(self.running.sum() + self.waiting.sum()) + self.held


class Autoscaler(Protocol):
    """A policy under replay. It keeps its own history, and decides at every `interval_s` from 0 on."""

    @property
    def name(self) -> str:
        """The name for reports, with its settings: `ray:5`."""
        ...

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `decide`."""
        ...

    def decide(self, sample: Sample) -> int:
        """Replicas to ask for now. The caller clips to the bounds of the fleet."""
        ...


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
