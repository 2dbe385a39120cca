"""How many ingress replicas a cluster has room for without taking what engine replicas need. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_SMALLEST = 1e-4
"""Ray counts resources in ten-thousandths."""

Resources = Mapping[str, float]
"""Amounts by Ray's names."""


@dataclass(frozen=True, slots=True)
class Node:
    """One living node of a Ray cluster: what it has, and what of that is free."""

    total: Resources
    free: Resources


def share_nodes(nodes: Iterable[Node], ingress: Resources, engines: Iterable[Resources]) -> bool:
    """Whether there is a node on which an ingress replica and a replica of one of the `engines` could run.

    Where the ingress has nodes of its own, pinned by a custom resource for instance, nothing it takes is
    missed by an engine.
    """
    needs = list(engines)
    return any(
        _fits(node.total, ingress) and any(_fits(node.total, need) for need in needs) for node in nodes
    )


def room_for_ingress(
    nodes: Iterable[Node], ingress: Resources, awaited: Sequence[Resources], most: int
) -> int:
    """Ingress replicas, at most `most`, that fit beside every engine replica in `awaited`.

    An awaited replica that fits nowhere now bars each node on which it would fit if it were empty: what
    becomes free there is the engine's. Replicas over several nodes (a placement group with SPREAD) are taken
    for one that wants it all on one node, and bar nothing where no node is as large.

    Args:
        nodes: The cluster's.
        ingress: What one ingress replica takes.
        awaited: What engine replicas take that have no place yet, or must find one at any time.
        most: Where to stop counting.
    """
    open_nodes = [(node, dict(node.free)) for node in nodes]
    for need in sorted(awaited, key=lambda need: -need.get("CPU", 0.0)):
        place = next((free for _, free in open_nodes if _fits(free, need)), None)
        if place is not None:
            _take(place, need)
        else:
            open_nodes = [(node, free) for node, free in open_nodes if not _fits(node.total, need)]
    found = 0
    for _, free in open_nodes:
        while found < most and _fits(free, ingress):
            _take(free, ingress)
            found += 1
    return found


def _fits(free: Resources, need: Resources) -> bool:
    return all(amount <= 0 or free.get(name, 0.0) > amount - _SMALLEST for name, amount in need.items())


def _take(free: dict[str, float], need: Resources) -> None:
    for name, amount in need.items():
        free[name] = free.get(name, 0.0) - amount
