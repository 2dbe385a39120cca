"""How long a replica takes to start, measured on the last ones that did. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from serve_app.wire.phases import DRAINING

_KEPT = 5
"""Starts remembered: enough for a median that one slow download does not move."""


@dataclass(frozen=True, slots=True)
class ColdStarts:
    """The newest starts of one deployment: for each, the replica and its seconds by phase."""

    startups: tuple[tuple[str, Mapping[str, float]], ...] = ()

    def add(self, phases: Mapping[str, Mapping[str, Any]]) -> ColdStarts:
        """Return them with the starts that are finished by the phase documents, given by replica."""
        known = {replica for replica, _ in self.startups}
        new = [
            (replica, {name: float(seconds) for name, seconds in document["durations_s"].items()})
            for replica, document in sorted(phases.items(), key=lambda item: float(item[1]["since"]))
            if document["phase"] == "ready" and replica not in known
        ]
        return ColdStarts((*self.startups, *new)[-_KEPT:]) if new else self

    def phases_s(self) -> dict[str, float]:
        """Return the typical seconds of each phase, in the order replicas go through them."""
        names = list(dict.fromkeys(name for _, phases in self.startups for name in phases))
        return {name: median(phases.get(name, 0.0) for _, phases in self.startups) for name in names}

    @property
    def total_s(self) -> float | None:
        """Typical seconds from the start of a replica's process to its readiness; None before the first."""
        if not self.startups:
            return None
        return median(sum(phases.values()) for _, phases in self.startups)


@dataclass(frozen=True, slots=True)
class PhaseCounts:
    """Replicas that are loading, and replicas that drain."""

    starting: int
    draining: int


def count_phases(phases: Mapping[str, Mapping[str, Any]], running: frozenset[str], now: float) -> PhaseCounts:
    """Count the phase documents of a deployment, given by replica; `running` are the ids of those that run.

    `now` is Unix time in seconds. A replica that drained longer than allowed has been killed by Ray.
    """
    starting = draining = 0
    for replica, document in phases.items():
        if document["phase"] == DRAINING:
            draining += now <= document.get("until", now)
        elif document["phase"] != "failed" and replica not in running:
            # `ready` counts too: Ray has not put it into service yet.
            starting += 1
    return PhaseCounts(starting, draining)
