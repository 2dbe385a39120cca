"""The newest starts of one deployment's replicas, and the median seconds of their phases. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, Self

from serve_app.policy.state import KEPT_IDENTITIES

_KEPT = 5
"""Starts kept per kind of node: enough for a median that one slow download does not move."""


class StartUp(NamedTuple):
    """One start of a replica, with its seconds by phase."""

    replica: str
    phases_s: dict[str, float]
    warm_node: bool
    """Whether vLLM was imported on the node before."""
    identity: str
    """See `serve_app.settings.identity`."""


@dataclass(frozen=True, slots=True)
class ColdStarts:
    """The newest starts of one deployment."""

    startups: tuple[StartUp, ...] = ()

    def add(self, phases: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return the starts with newly finished ones from `phases`, the phase documents by replica."""
        known = {startup.replica for startup in self.startups}
        new = [
            StartUp(
                replica,
                {name: float(seconds) for name, seconds in document["durations_s"].items()},
                document["warm_node"],
                document["identity"],
            )
            for replica, document in sorted(phases.items(), key=lambda item: float(item[1]["since"]))
            if document["phase"] == "ready" and replica not in known
        ]
        if not new:
            return self
        found = (*self.startups, *new)
        newest = [*dict.fromkeys(each.identity for each in reversed(found))][:KEPT_IDENTITIES]
        kinds: dict[tuple[str, bool], list[str]] = {}
        for each in found:
            kinds.setdefault((each.identity, each.warm_node), []).append(each.replica)
        kept = {name for kind, names in kinds.items() if kind[0] in newest for name in names[-_KEPT:]}
        return type(self)(tuple(each for each in found if each.replica in kept))

    def of(self, identity: str) -> Self:
        return type(self)(tuple(each for each in self.startups if each.identity == identity))

    def on(self, *, warm_node: bool) -> Self:
        return type(self)(tuple(each for each in self.startups if each.warm_node is warm_node))

    def phases_s(self) -> dict[str, float]:
        """Return the median seconds of each phase, in the order of the phases."""
        starts = [startup.phases_s for startup in self.startups]
        names = dict.fromkeys(name for phases in starts for name in phases)
        return {name: median(phases.get(name, 0.0) for phases in starts) for name in names}

    @property
    def total_s(self) -> float | None:
        """Median seconds from the start of a replica's process to its readiness; None without a start."""
        return median(sum(each.phases_s.values()) for each in self.startups) if self.startups else None
