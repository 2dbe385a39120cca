"""How far the start of a model's next replica has come, and how long it will still take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

_NOT_STARTING = ("ready", "failed", "draining")
# From a replica's own readiness to Ray's putting it into service it takes a second or two.
_INTO_SERVICE_S = 5.0
_STATUS_AGE_S = 10.0
"""The policy writes its status at least this often."""


@dataclass(frozen=True, slots=True)
class ColdStartProgress:
    """The phase of the replica nearest to readiness, and the seconds that it is expected to take still.

    Phases are those of a replica's start-up, and where none is known: `requested` (no replica has been
    started yet), `pending_capacity` (the cluster has no room for it), `process` (its process starts), `busy`
    (replicas are up and full) or `unknown`."""

    phase: str
    eta_s: float | None


UNKNOWN = ColdStartProgress("unknown", None)


def cold_start_progress(
    status: Mapping[str, Any] | None, phases: Mapping[str, Mapping[str, Any]], now: float
) -> ColdStartProgress:
    """How far the next replica of one deployment is.

    Args:
        status: What the policy says of the deployment (`documents.STATUS`), or None while it says nothing.
        phases: The phase documents of its replicas, by replica. Those of replicas that were killed
            linger, so only the newest are believed, as many as the policy is waiting for.
        now: Unix time, in seconds.

    Returns:
        Its ETA is a lower bound while the cluster has no room, and None where nothing was measured.
    """
    newest = sorted(phases.values(), key=lambda document: float(document["since"]), reverse=True)
    starting = [document for document in newest if document["phase"] not in _NOT_STARTING]
    if status is None:
        return ColdStartProgress(starting[0]["phase"], None) if starting else UNKNOWN
    expected: Mapping[str, float] = status["phases_s"]
    known, awaited = int(status["starting"]), int(status["starting"]) + int(status["pending"])
    # A replica that is pending has no phase yet, or a new one: an older document is another replica's.
    begun_after = now - _STATUS_AGE_S - float(status.get("pending_s", 0.0))
    candidates = [
        ColdStartProgress(document["phase"], _remaining_s(document, expected, now))
        for index, document in enumerate(starting[:awaited])
        if index < known or float(document["since"]) >= begun_after
    ]
    if candidates:
        return min(candidates, key=lambda each: inf if each.eta_s is None else each.eta_s)
    last = newest[0] if newest else None
    if awaited and last and last["phase"] == "ready" and now - float(last["since"]) < _INTO_SERVICE_S:
        return ColdStartProgress("ready", 0.0)
    cold_start_s: float | None = status["cold_start_s"]
    if status["pending"]:
        return ColdStartProgress("pending_capacity", cold_start_s)
    if status["starting"]:
        return ColdStartProgress("process", cold_start_s)
    if status["ready"]:
        return ColdStartProgress("busy", None)
    return ColdStartProgress("requested", cold_start_s)


def _remaining_s(document: Mapping[str, Any], expected: Mapping[str, float], now: float) -> float | None:
    """The rest of the phase a replica is in, and all later ones; None if that phase was never measured."""
    phase = document["phase"]
    if phase not in expected:
        return None
    order = list(expected)
    later = sum(expected[name] for name in order[order.index(phase) + 1 :])
    return max(0.0, expected[phase] - (now - float(document["since"]))) + later
