"""The progress of a cold start, from the documents that replicas and the policy store."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any, Self

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.serve_status import ServeStatus, summary
from serve_app.wire.documents import STATUS, parse_status, read_document
from serve_app.wire.own_clock import OwnClock
from serve_app.wire.phases import DRAINING, FAILED, read_phases

DEFAULT_RETRY_AFTER_S = 30
"""For an unknown ETA."""
NOT_STARTING = ("ready", FAILED, DRAINING)
"""The phases of replicas that are not on their way to readiness."""
# A ready replica gets requests a second or two later, when Ray lists it.
_INTO_SERVICE_S = 5.0
_STATUS_AGE_S = 10.0
"""The policy writes its status at least this often."""
_WAIT_S = 1.0
_BELIEVED_S = 10.0
"""How long the last reading counts while the store does not answer."""
_STATUS_LIFE_S = 60.0
"""A status this old belongs to a policy that is gone: a policy writes its status every ten seconds."""
_ROLLOUT_FAILED = "rollout_failed"
_NOT_STARTED = ("requested", "unknown")
_SERVE_AGE_S = 2.0
"""A status of Ray Serve this old refuses no request, because the next rollout may have begun since."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """One reading of the stored documents, with times on the reader's clock."""

    status: Mapping[str, Any] | None = None
    """The policy's status (see `parse_status`); None while there is none."""
    phases: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Phase documents by engine deployment and replica, of replicas that exist or could not start."""

    def of(self, deployment: str, now: float) -> Mapping[str, Any] | None:
        """Return the policy's status of one engine deployment; None if it is too old at `now`."""
        if self.status is None or now - float(self.status["at"]) >= _STATUS_LIFE_S:
            return None
        found: Mapping[str, Any] | None = self.status["models"].get(deployment)
        return found

    def by_model(self, models: Mapping[str, Collection[str]]) -> Self:
        """Return this reading with the phases of all engine deployments of each model under its name."""
        phases = {
            model: {replica: found for name in names for replica, found in self.phases.get(name, {}).items()}
            for model, names in models.items()
        }
        return replace(self, phases=phases)


def state_reader(
    app: str,
    deployments: Sequence[str],
    clock: Callable[[], float] = time.monotonic,
    unix_clock: Callable[[], float] = time.time,
) -> Callable[[], StoredState]:
    """Return a function that reads the stored state of these engine deployments of `app`.

    Its times are on `clock`. It waits for the GCS, however long that takes (see `BoundedCall`).
    """
    own = OwnClock()

    def read() -> StoredState:
        status = read_document(STATUS, app, parse_status)
        phases = read_phases(app, deployments)
        now, unix_now = clock(), unix_clock()
        if status is not None:
            # Not believed: if the policy's clock is behind, its status would always be too old.
            at = own.times(STATUS, {STATUS: float(status["at"])}, now, unix_now, believed=False)
            status["at"] = at[STATUS]
        return StoredState(
            status, {name: own.phases(name, found.existing, now, unix_now) for name, found in phases.items()}
        )

    return read


@dataclass(frozen=True, slots=True)
class ColdStartProgress:
    """The phase of the replica nearest to readiness, and the seconds until it is expected to be ready.

    The phase is one of a replica's start-up. If no such phase is known, it is `requested` (no replica has
    been started yet), `pending_capacity` (the cluster has no room), `process` (the process starts), `busy`
    (replicas are up and full), `rollout_failed` (none starts before another rollout) or `unknown`.
    """

    phase: str
    eta_s: float | None
    reason: str = ""
    """Why no replica can start, if none can."""
    place: int = 0
    """The place in the line of models that wait for room; 0 if the model is in no line."""

    @property
    def retry_after_s(self) -> int:
        """The whole seconds after which a refused client may try again, at least one."""
        return DEFAULT_RETRY_AFTER_S if self.eta_s is None else max(1, ceil(self.eta_s))


UNKNOWN = ColdStartProgress("unknown", None)


def cold_start_progress(
    status: Mapping[str, Any] | None, phases: Mapping[str, Mapping[str, Any]], now: float
) -> ColdStartProgress:
    """Return the progress of the next replica of one deployment.

    Args:
        status: The policy's status of the deployment (`documents.STATUS`); None while there is none.
        phases: The phase documents of its replicas, by replica.
        now: Seconds on the clock of the times in `phases`.

    Returns:
        The ETA is a lower bound while the cluster has no room and the model is in no line, and None if
        nothing was measured.
    """
    newest = _newest(phases)
    if status is None:
        first = next((document for _, document in newest if document["phase"] not in NOT_STARTING), None)
        return UNKNOWN if first is None else ColdStartProgress(first["phase"], None)
    awaited = int(status["starting"]) + int(status["pending"])
    candidates = [
        ColdStartProgress(document["phase"], remaining_s(document, expected_s(document, status), now))
        for document in starting_replicas(status, phases, now).values()
    ]
    if candidates:
        return min(candidates, key=lambda each: inf if each.eta_s is None else each.eta_s)
    last = newest[0][1] if newest else None
    if awaited and last and last["phase"] == "ready" and now - float(last["since"]) < _INTO_SERVICE_S:
        return ColdStartProgress("ready", 0.0)
    cold_start_s: float | None = status["cold_start_s"]
    if line := status.get("line"):
        return ColdStartProgress("pending_capacity", line["eta_s"], place=int(line["place"]))
    if status["pending"]:
        return ColdStartProgress("pending_capacity", cold_start_s)
    if status["starting"]:
        return ColdStartProgress("process", cold_start_s)
    if status["ready"]:
        return ColdStartProgress("busy", None)
    return ColdStartProgress("requested", cold_start_s)


def starting_replicas(
    status: Mapping[str, Any], phases: Mapping[str, Mapping[str, Any]], now: float
) -> dict[str, Mapping[str, Any]]:
    """Return the phase documents of the replicas that start, by replica, the newest first.

    Documents of killed replicas linger. So only the newest count, as many as the policy waits for.
    """
    starting = [item for item in _newest(phases) if item[1]["phase"] not in NOT_STARTING]
    known, awaited = int(status["starting"]), int(status["starting"]) + int(status["pending"])
    # A pending replica has no phase document yet, or a new one. An older document is another replica's.
    begun_after = now - _STATUS_AGE_S - float(status.get("pending_s", 0.0))
    return {
        replica: document
        for index, (replica, document) in enumerate(starting[:awaited])
        if index < known or float(document["since"]) >= begun_after
    }


def _newest(phases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return sorted(phases.items(), key=lambda item: float(item[1]["since"]), reverse=True)


def expected_s(document: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the typical seconds of each phase on this kind of node; by default those of the next replica."""
    kind = "warm" if document["warm_node"] else "cold"
    expected: Mapping[str, float] = status[f"{kind}_node_phases_s"] or status["phases_s"]
    return expected


def remaining_s(document: Mapping[str, Any], expected: Mapping[str, float], now: float) -> float | None:
    """Return the seconds left of a replica's phase and all later ones; None for an unmeasured phase.

    A phase that has exceeded its typical time by x is expected to take x more: durations have long tails, as
    when kernels are compiled once, and a client must not be told "0 s" for minutes.
    """
    phase = document["phase"]
    if phase not in expected:
        return None
    order = list(expected)
    later = sum(expected[name] for name in order[order.index(phase) + 1 :])
    return abs(expected[phase] - (now - float(document["since"]))) + later


@dataclass(slots=True, eq=False)
class ProgressReader:
    """Reads the progress of one deployment, from `start` to `stop`."""

    stored: BoundedCall[StoredState]
    serve: BoundedCall[ServeStatus]
    """Ray Serve's status, which is read only while no replica starts."""
    deployment: str
    interval_s: float = 1.0
    """The time between two readings."""
    clock: Callable[[], float] = time.monotonic
    """The clock of `stored` and `serve`."""
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _last: ColdStartProgress = field(default=UNKNOWN, init=False)

    @property
    def current(self) -> ColdStartProgress:
        """The newest progress; `UNKNOWN` once its reading is 10 s old."""
        age_s = self.stored.age_s()
        return self._last if age_s is not None and age_s <= _BELIEVED_S else UNKNOWN

    def start(self, on_rollout_failed: Callable[[str], None], on_requested: Callable[[], None]) -> None:
        """Start to read. A second call does nothing.

        Args:
            on_rollout_failed: Called with the reason after each reading of the phase `rollout_failed`.
            on_requested: Called after each reading of the phase `requested`: the policy wants no replica yet.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run(on_rollout_failed, on_requested))

    def stop(self) -> None:
        """Stop reading, and forget the last reading."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._last = UNKNOWN

    async def _run(self, on_rollout_failed: Callable[[str], None], on_requested: Callable[[], None]) -> None:
        while True:
            answer = await self.stored.get(_WAIT_S)
            if answer is not None:
                now = self.clock()
                state = answer.value
                phases = state.phases.get(self.deployment, {})
                progress = cold_start_progress(state.of(self.deployment, now), phases, now)
                if progress.phase == "requested":
                    on_requested()
                if progress.phase in _NOT_STARTED and (reason := await self._why_nothing_starts()):
                    progress = ColdStartProgress(_ROLLOUT_FAILED, None, reason)
                self._last = progress
                if progress.reason:
                    on_rollout_failed(progress.reason)
            await asyncio.sleep(self.interval_s)

    async def _why_nothing_starts(self) -> str:
        """Return why Ray Serve starts no replica for any request; "" if it may start one."""
        answer, age_s = await self.serve.get(_WAIT_S), self.serve.age_s()
        if answer is None or age_s is None or age_s > _SERVE_AGE_S:
            return ""
        if not answer.value.starts_nothing(self.deployment):
            return ""
        return f"the last rollout failed: {summary(answer.value.failed_rollout)}"
