"""Ray Serve's request router for engine deployments, which tells the ingress the running replicas.

A reservation through Ray costs two actor calls: 2.5 ms of one core per request, and 80 ms for a burst of 32.
So admission picks from this process's own list of running replicas. Ray pushes each change of the list here.
Ray's queue is used only while there is no replica.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ray.serve._private.common import ReplicaID, ReplicaMetricReport, TimeStampedValue
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica

from serve_app.cancellation import only_own_cancellation
from serve_app.ingress.replica_set import ReplicaSet, replica_set
from serve_app.patches.ray import run_router_here

logger = logging.getLogger("ray.serve")


class EngineRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Keeps the replica set of its deployment current. Requests do not go through it."""

    _replica_set: ReplicaSet | None = None
    _variant = ""

    def initialize_state(self, **kwargs: Any) -> None:
        """Ray calls this with `request_router_kwargs`: the model's `deployment_name`, and the variant."""
        self._replica_set = replica_set(kwargs["deployment"])
        self._variant = kwargs.get("variant", "")

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Ray calls this with all running replicas, none of them draining, after each change."""
        super().update_replicas(replicas)
        if self._replica_set is not None:
            self._replica_set.update(
                {
                    replica.replica_id.unique_id: replica.replica_metadata
                    for replica in replicas
                    if "address" in replica.replica_metadata
                },
                self._variant,
            )

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas in any order, because only `Wake` asks, and it sends no request."""
        return [[replica] for replica in candidate_replicas]


@dataclass(slots=True, eq=False)
class Wake:
    """Keeps one request in Ray Serve's queue as long as a replica is needed.

    Tideserve's policy starts replicas for the requests that the ingress reports. The request of a wake makes
    Ray report engines that cannot start. Ray's own policy would also act on it.
    """

    model: str
    """The model's name, for the log."""
    handle: DeploymentHandle
    """Its engine deployment."""
    needed: Callable[[], bool]
    """Returns whether a replica is still needed."""
    on_unavailable: Callable[[], None]
    """Called when Ray reports that the engines cannot start."""
    ask_again_s: float = 5.0
    """Only new requests hear from Ray that the engines cannot start. Requests in Ray's queue wait on. So the
    request is replaced after so many seconds."""
    pause_s: float = 1.0
    """The wait after Ray has failed, or has not pushed its new replica here yet."""
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        run_router_here(self.handle)

    def start(self) -> None:
        """Start to ask Ray for a replica, unless it is being asked."""
        if not self.is_asking:
            self._task = asyncio.create_task(self._run())

    @property
    def is_asking(self) -> bool:
        return self._task is not None and not self._task.done()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while self.needed():
            try:
                async with asyncio.timeout(self.ask_again_s) as asking:
                    with only_own_cancellation():
                        async with self.handle.choose_replica():
                            pass
            except DeploymentUnavailableError:
                self.on_unavailable()
                return
            except Exception:
                if asking.expired():
                    continue
                logger.exception("model %s: asking Ray for a replica failed", self.model)
            if self.needed():
                await asyncio.sleep(self.pause_s)


class Wakes:
    """The wakes of a model's engine deployments: one, or one for each variant.

    `on_unavailable` is called when Ray reports that the engines of no deployment can start.
    """

    def __init__(
        self,
        model: str,
        handles: Sequence[DeploymentHandle],
        needed: Callable[[], bool],
        on_unavailable: Callable[[], None],
    ) -> None:
        self._on_unavailable = on_unavailable
        self._failed: set[int] = set()
        self._wakes = [
            Wake(model, handle, needed, partial(self.note_failed, index))
            for index, handle in enumerate(handles)
        ]

    def start(self) -> None:
        """Start to ask Ray for replicas, unless it is being asked."""
        if not any(wake.is_asking for wake in self._wakes):
            self._failed.clear()  # a deployment that failed in an earlier cold start may work now
        for wake in self._wakes:
            wake.start()

    def stop(self) -> None:
        self._failed.clear()
        for wake in self._wakes:
            wake.stop()

    def note_failed(self, index: int) -> None:
        """Note that Ray has reported that the engines of one deployment cannot start."""
        self._failed.add(index)
        if len(self._failed) == len(self._wakes):
            self._failed.clear()
            self._on_unavailable()


_REPORTS = 10
"""One second of reports: the policy waits at most so long for the size of a burst."""


@dataclass(slots=True, eq=False)
class ColdReports:
    """Sends the report of one ingress replica ten times a second, for a second after `start`.

    Ray sends the report twice a second, with values up to half a second old. Then the policy would see the
    first request for a model at zero after half a second on average, and the burst half a second later.
    """

    controller: Any
    """Ray Serve's controller."""
    replica: ReplicaID
    """The id of this ingress replica."""
    report: Callable[[], Mapping[str, float]]
    """Returns the report that Ray sends (`record_autoscaling_stats`)."""
    interval_s: float = 0.1
    """The policy decides as often for a model at zero replicas."""
    clock: Callable[[], float] = time.time
    """Unix time in seconds."""
    _left: int = field(default=0, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Send the first report in the next turn of the event loop. Each call restarts the second."""
        self._left = _REPORTS
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._left:
            self._left -= 1
            try:
                now = self.clock()
                values = {name: [TimeStampedValue(now, value)] for name, value in self.report().items()}
                report = ReplicaMetricReport(self.replica, values, now)
                self.controller.record_autoscaling_metrics_from_replica.remote(report)
            except Exception:  # Ray still sends its own report
                logger.warning("the report of queued requests could not be sent early", exc_info=True)
                return
            await asyncio.sleep(self.interval_s)
