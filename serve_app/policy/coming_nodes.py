"""Nodes that a node autoscaler has begun to start: when each is expected, as nodes before took. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from serve_app.wire.resources import ComingNode, Node, Resources, lacking

_NODE_S = 120.0
"""The assumed seconds from the request for a node until Ray has it, until one has been measured."""
_JOINS_S = 30.0
"""A pod runs for some seconds before its node joins Ray. After this time the pod counts as deleted."""


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """The nodes of the cluster, those that come, and how long nodes took."""

    node_s: float = _NODE_S
    known: frozenset[str] = frozenset()
    """The nodes of the last reading."""
    coming: tuple[tuple[ComingNode, float], ...] = ()
    """Nodes that have not joined, the oldest first, and when each was last listed."""
    joined: frozenset[str] = frozenset()
    """Coming nodes that have joined, and are still listed."""

    def see(self, nodes: Iterable[Node], listed: Sequence[ComingNode], now: float) -> Self:
        """Return the memory after a reading. `now` is on the clock of `ComingNode.since`."""
        names = {each.name for each in listed}
        coming = [(each, now) for each in listed if each.name not in self.joined]
        coming += [(each, at) for each, at in self.coming if each.name not in names and now - at < _JOINS_S]
        coming.sort(key=lambda pair: pair[0].since)
        node_s, joined = self.node_s, set(self.joined & names)
        new = [node for node in nodes if self.known and node.name not in self.known]
        for node in new:
            pair = next((pair for pair in coming if not lacking(node.total, pair[0].total)), None)
            if pair is not None:
                coming.remove(pair)
                joined.add(pair[0].name)
                node_s = (node_s + now - pair[0].since) / 2
        known = frozenset(node.name for node in nodes)
        return type(self)(node_s, known, tuple(coming), frozenset(joined))

    def free(self, now: float) -> list[tuple[float, dict[str, float]]]:
        """Return the expected seconds until each coming node joins, and its resources; the soonest first.

        A node that is late by some time is expected to take as long again, because it may never come.
        """
        times = [(abs(self.node_s - (now - each.since)), dict(each.total)) for each, _ in self.coming]
        return sorted(times, key=lambda pair: pair[0])


def fits(total: Resources, need: Resources) -> bool:
    """Whether a replica fits on a coming node. Ray names the type of a GPU only when the node has joined."""
    return all(name.startswith("accelerator_type:") for name in lacking(total, need))
