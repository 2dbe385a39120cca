"""How many ingress replicas fit into a cluster without taking what engine replicas need. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_SMALLEST = 1e-4
"""Ray counts resources in ten-thousandths."""

Resources = Mapping[str, float]
"""Amounts by Ray's names."""


@dataclass(frozen=True, slots=True)
class Node:
    """The resources of one living node of a Ray cluster, and the free ones among them."""

    total: Resources
    free: Resources


def share_nodes(nodes: Iterable[Node], ingress: Resources, engines: Iterable[Resources]) -> bool:
    """Return whether an ingress replica and a replica of one of the `engines` could run on the same node.

    Where the ingress has nodes of its own, pinned by a custom resource for instance, it takes nothing that an
    engine needs.
    """
    needs = list(engines)
    return any(fits(node.total, ingress) and any(fits(node.total, need) for need in needs) for node in nodes)


def room_for_ingress(
    nodes: Iterable[Node], ingress: Resources, awaited: Sequence[Resources], most: int
) -> int:
    """Return how many ingress replicas, at most `most`, fit beside every engine replica in `awaited`.

    An awaited replica that fits nowhere now reserves each node on which it would fit if the node were empty:
    what becomes free there is for the engine. A replica over several nodes (a placement group with SPREAD)
    counts as one that needs everything on one node, and reserves nothing where no node is as large.

    Args:
        nodes: The nodes of the cluster.
        ingress: The resources of one ingress replica.
        awaited: The resources of each engine replica that has no node yet, or may need one at any time.
        most: Where to stop counting.
    """
    open_nodes = [(node, dict(node.free)) for node in nodes]
    for need in sorted(awaited, key=lambda need: -need.get("CPU", 0.0)):
        fitting = next((free for _, free in open_nodes if fits(free, need)), None)
        if fitting is not None:
            _take(fitting, need)
        else:
            open_nodes = [(node, free) for node, free in open_nodes if not fits(node.total, need)]
    found = 0
    for _, free in open_nodes:
        while found < most and fits(free, ingress):
            _take(free, ingress)
            found += 1
    return found


def fits(free: Resources, need: Resources) -> bool:
    """Return whether `need` is there in `free`."""
    return all(amount <= 0 or free.get(name, 0.0) > amount - _SMALLEST for name, amount in need.items())


def _take(free: dict[str, float], need: Resources) -> None:
    for name, amount in need.items():
        free[name] = free.get(name, 0.0) - amount
