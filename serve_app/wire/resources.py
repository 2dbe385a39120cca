"""Amounts of resources: of a node, of a replica, and whether a replica fits. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

_SMALLEST = 1e-4
"""Ray counts resources in ten-thousandths; a smaller difference is a rounding error."""

Resources = Mapping[str, float]
"""Amounts by Ray's names. A resource that is used up is absent."""


@dataclass(frozen=True, slots=True)
class Node:
    """The resources of one living node of a Ray cluster, and the free ones among them."""

    total: Resources
    free: Resources
    name: str = ""
    """Ray's identifier of the node."""


@dataclass(frozen=True, slots=True)
class ComingNode:
    """A node that a node autoscaler has asked for, and that has not joined Ray."""

    name: str
    total: Resources
    since: float
    """When it was asked for, in seconds."""


def lacking(free: Resources, need: Resources) -> list[str]:
    """Return the names of the resources in `need` of which `free` has too little."""
    return [name for name, amount in need.items() if amount > 0 and free.get(name, 0.0) <= amount - _SMALLEST]


def fitting(total: Resources, need: Resources, most: int) -> int:
    """Return how many times `need` goes into `total`, at most `most`."""
    times = [int((total.get(name, 0.0) + _SMALLEST) / amount) for name, amount in need.items() if amount > 0]
    return min([most, *times])


def add(free: dict[str, float], amounts: Resources, times: float = 1.0) -> None:
    """Add `times` the `amounts` to `free`."""
    for name, amount in amounts.items():
        free[name] = free.get(name, 0.0) + times * amount
