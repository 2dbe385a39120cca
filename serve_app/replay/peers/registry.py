"""Baseline policies by the specification that a command line or a report gives: `ray:5`, `hpa:waiting=1`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from serve_app.autoscaling.service import StepTime
from serve_app.replay.peers.apa import AibrixApa
from serve_app.replay.peers.dynamo import INTERVAL_S, ITL_S, TTFT_S, DynamoPlanner
from serve_app.replay.peers.hpa import HpaKeda, Metric
from serve_app.replay.peers.kpa import CONCURRENCY, KnativeKpa
from serve_app.replay.peers.ray_default import TARGET_ONGOING_REQUESTS, RayDefault
from serve_app.replay.peers.schedule import Schedule
from serve_app.replay.peers.static import Static
from serve_app.replay.peers.wva import LlmdWva
from serve_app.replay.peers.wva_v2 import LlmdWvaTokens
from serve_app.replay.sample import Autoscaler

PUBLISHED = (
    "ray",
    "ray:5",
    "ray:10",
    "kpa:5",
    "hpa:waiting=1",
    "hpa:ongoing=10",
    "apa:5",
    "wva",
    "wva:2",
    "dynamo",
    "dynamo:itl=0.015,ttft=0.15,interval=60",
)
"""What the benchmark compares, beside static fleets and the oracle."""

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


_Settings = Mapping[str, float]
"""By name; what stands alone after the colon is ''."""


@dataclass(frozen=True, slots=True)
class _Law:
    spec: str
    """How it is written, for error messages."""
    takes: tuple[str, ...]
    make: Callable[[_Settings, Surroundings], Autoscaler]


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
    law = _LAWS.get(name)
    if law is None:
        known = ", ".join(law.spec for law in _LAWS.values())
        raise SpecError(f"policy {spec!r}: no such baseline; there are {known}")
    settings = _settings(spec, law, rest)
    surroundings = Surroundings(fit, max_num_seqs, max_num_batched_tokens, schedule)
    try:
        return law.make(settings, surroundings)
    except SpecError as error:
        raise SpecError(f"policy {spec!r}: {error}; written {law.spec}") from None


def names() -> tuple[str, ...]:
    """Of the baselines."""
    return tuple(_LAWS)


def _settings(spec: str, law: _Law, rest: str) -> dict[str, float]:
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


def _whole(settings: _Settings, least: int, most: int, usual: int | None = None) -> int:
    value = settings.get("", usual)
    if value is None:
        raise SpecError("a whole number is needed")
    if value != int(value) or not least <= value <= most:
        raise SpecError(f"{value:g} must be a whole number from {least} to {most}")
    return int(value)


def _one(settings: _Settings, usual: tuple[str, float]) -> tuple[str, float]:
    if len(settings) > 1:
        raise SpecError("one setting is enough")
    return next(iter(settings.items()), usual)


def _ray(settings: _Settings, _: Surroundings) -> Autoscaler:
    return RayDefault(settings.get("", TARGET_ONGOING_REQUESTS))


def _kpa(settings: _Settings, _: Surroundings) -> Autoscaler:
    return KnativeKpa(settings.get("", CONCURRENCY))


def _hpa(settings: _Settings, _: Surroundings) -> Autoscaler:
    metric, target = _one(settings, ("ongoing", 10.0))
    return HpaKeda(cast(Metric, metric), target)


def _apa(settings: _Settings, _: Surroundings) -> Autoscaler:
    return AibrixApa(_one(settings, ("", 5.0))[1])


def _dynamo(settings: _Settings, given: Surroundings) -> Autoscaler:
    if given.fit is None:
        raise SpecError("it needs a profile of the engines")
    return DynamoPlanner(
        given.fit,
        itl_s=settings.get("itl", ITL_S),
        ttft_s=settings.get("ttft", TTFT_S),
        interval_s=settings.get("interval", INTERVAL_S),
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
    )


def _wva(settings: _Settings, given: Surroundings) -> Autoscaler:
    if _whole(settings, 1, 2, usual=1) == 1:
        return LlmdWva()
    return LlmdWvaTokens(given.max_num_seqs, given.max_num_batched_tokens)


def _static(settings: _Settings, _: Surroundings) -> Autoscaler:
    return Static(_whole(settings, 1, _MOST_REPLICAS))


def _schedule(_: _Settings, given: Surroundings) -> Autoscaler:
    if given.schedule is None:
        raise SpecError("it needs a timetable")
    return Schedule(given.schedule)


_LAWS = {
    "ray": _Law("ray[:TARGET]", ("",), _ray),
    "kpa": _Law("kpa[:CONCURRENCY]", ("",), _kpa),
    "hpa": _Law("hpa[:waiting=TARGET|:ongoing=TARGET]", ("waiting", "ongoing"), _hpa),
    "apa": _Law("apa[:TARGET]", ("",), _apa),
    "dynamo": _Law("dynamo[:itl=S,ttft=S,interval=S]", ("itl", "ttft", "interval"), _dynamo),
    "wva": _Law("wva[:1 or 2]", ("",), _wva),
    "static": _Law("static:REPLICAS", ("",), _static),
    "schedule": _Law("schedule", (), _schedule),
}
