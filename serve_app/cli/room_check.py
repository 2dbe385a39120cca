"""Whether an application's ingress replicas leave its engines room on a machine's CPUs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from serve_app import env
from serve_app.settings import AppSettings
from serve_app.settings.knobs import IngressKnobs, Knobs

_SMALLEST = 1e-4
"""Ray counts resources in ten-thousandths."""


@dataclass(frozen=True, slots=True)
class Cpus:
    """The CPUs that applications are checked against."""

    count: float
    told: bool
    """Whether they are known to be those that will serve, and not merely this machine's: a file for a
    cluster may be checked anywhere."""


def local_cpus() -> float:
    """The CPUs that a Ray started here counts: the machine's or the container's, unless it is told others."""
    from ray._private.utils import get_num_cpus  # noqa: PLC0415

    given = json.loads(os.environ.get(env.RAY_RESOURCES) or "{}")
    return float(given.get("CPU", get_num_cpus()))


def check_room(
    settings: AppSettings,
    knobs: Mapping[str, Knobs],
    ingress: IngressKnobs,
    cpus: Cpus,
    path: str,
) -> list[str]:
    """The problem, if the ingress at its maximum leaves no room for some model's first replica.

    Room is what the CPUs leave beside the ingress at `max_replicas` and the other models at `min_replicas`.
    Of nodes nothing is known, so CPUs count as one sum. Nothing is said of an application with custom
    resources, which name nodes that this does not know; nor, where the CPUs are only this machine's, of one
    with GPUs.

    Args:
        settings: The application's.
        knobs: Of each model, by name.
        ingress: Of the ingress.
        cpus: Where it is to run.
        path: Of the ingress's knobs in the file.
    """
    if settings.ingress.resources or any(model.resources for model in settings.models):
        return []
    if not cpus.told and any(model.device != "cpu" for model in settings.models):
        return []
    each = settings.ingress.cpus_per_replica
    standing = sum(knobs[model.name].min_replicas * model.cpus_per_replica for model in settings.models)
    for model in settings.models:
        waking = 0.0 if knobs[model.name].min_replicas else model.cpus_per_replica
        left = cpus.count - standing - waking
        if each > 0 and left < ingress.max_replicas * each - _SMALLEST:
            return [f"{path}.{_problem(ingress.max_replicas, each, cpus.count, left, model.name)}"]
    return []


def _problem(replicas: int, each: float, cpus: float, left: float, model: str) -> str:
    most = math.floor((left + _SMALLEST) / each)
    return (
        f"max_replicas = {replicas}: ingress replicas may take {replicas * each:g} of {cpus:g} CPUs "
        f"(ingress.cpus_per_replica = {each:g}), where one replica of model {model!r} beside min_replicas of "
        f"the others leaves {max(left, 0.0):g}: requests held for it would wait for the ingress's own room; "
        + (f"must be at most {most}" if most > 0 else "not even one fits: lower one of the cpus_per_replica")
    )
