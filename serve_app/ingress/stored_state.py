"""What the replicas and the policy of an application have stored in Ray's key-value store."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.wire.documents import STATUS, parse_status, read_document
from serve_app.wire.own_clock import OwnClock
from serve_app.wire.phases import read_phases

_FRESH_S = 0.5
_STATUS_LIFE_S = 60.0
"""A policy writes its status every ten seconds; a much older one was left by a policy that is gone."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """One reading of what is stored, with its times on the reader's clock."""

    status: Mapping[str, Any] | None = None
    """The policy's status, with the keys that `parse_status` checks; None while there is none."""
    phases: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Phase documents by engine deployment and replica: of replicas that exist or could not start."""

    def of(self, deployment: str, now: float) -> Mapping[str, Any] | None:
        """What the policy says of one engine deployment at `now` by the reader's clock, if there is one."""
        if self.status is None or now - float(self.status["at"]) >= _STATUS_LIFE_S:
            return None
        found: Mapping[str, Any] | None = self.status["models"].get(deployment)
        return found


def stored_state(
    app: str,
    deployments: Iterable[str],
    clock: Callable[[], float] = time.monotonic,
    unix_clock: Callable[[], float] = time.time,
) -> BoundedCall[StoredState]:
    """The stored state of these engine deployments of `app`, half a second old as long as the GCS answers.

    Its times are on `clock`.
    """
    names = tuple(deployments)
    own = OwnClock()

    def read() -> StoredState:
        status = read_document(STATUS, app, parse_status)
        phases = read_phases(app, names)
        now, unix_now = clock(), unix_clock()
        if status is not None:
            # Not believed: the status of a policy whose clock is behind would never count.
            at = own.times(STATUS, {STATUS: float(status["at"])}, now, unix_now, believed=False)
            status["at"] = at[STATUS]
        return StoredState(
            status, {name: own.phases(name, found.existing, now, unix_now) for name, found in phases.items()}
        )

    return BoundedCall(f"stored state of {app}", read, _FRESH_S, clock)
