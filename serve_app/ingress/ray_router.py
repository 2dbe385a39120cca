"""Ray Serve's request router for engine deployments: it knows which replicas run, and a wake asks it for one.

To reserve a place on a replica through Ray costs two actor calls, 2.5 ms of one core for each request; a
burst of 32 would wait 80 ms for them. So the relay picks from this process's own view of the running
replicas, which Ray pushes here the moment it changes, and uses Ray's queue only where there is none.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica

from serve_app.ingress.replica_set import ReplicaSet, replica_set
from serve_app.patches.ray import run_router_here

logger = logging.getLogger("ray.serve")

# Ray says only to new requests that the engines cannot start; those queued already wait on.
_ASK_AGAIN_S = 5.0
_PAUSE_S = 1.0


class EngineRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Keeps the replica set of its deployment current. Requests do not go through it."""

    _replica_set: ReplicaSet | None = None

    def initialize_state(self, **kwargs: Any) -> None:
        """Ray calls this with `request_router_kwargs`: the `deployment` whose replicas these are."""
        self._replica_set = replica_set(kwargs["deployment"])

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Ray calls this whenever a replica starts or stops running; a draining one is not among them."""
        super().update_replicas(replicas)
        if self._replica_set is not None:
            self._replica_set.update(
                {
                    replica.replica_id.unique_id: replica.replica_metadata
                    for replica in replicas
                    if "address" in replica.replica_metadata
                }
            )

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return each replica as a rank of its own: only a wake asks, and it sends no request."""
        return [[replica] for replica in candidate_replicas]


class Wake:
    """Keeps one request in Ray Serve's queue as long as a replica is needed.

    The policy starts replicas for the requests that the ingress reports. This one has Ray make its router and
    say when the engines cannot start, and is what Ray's own policy would act on.

    Args:
        model: The model's name, for the log.
        handle: Its engine deployment.
        needed: Whether a replica is still needed.
        on_unavailable: Called when Ray says that the engines cannot start.
    """

    def __init__(
        self,
        model: str,
        handle: DeploymentHandle,
        needed: Callable[[], bool],
        on_unavailable: Callable[[], None],
    ) -> None:
        self._model = model
        self._handle = handle
        self._needed = needed
        self._on_unavailable = on_unavailable
        self._task: asyncio.Task[None] | None = None
        run_router_here(handle)

    def start(self) -> None:
        """Ask Ray for a replica. Does nothing while that is going on."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while self._needed():
            try:
                async with asyncio.timeout(_ASK_AGAIN_S) as asking, self._handle.choose_replica():
                    pass
            except DeploymentUnavailableError:
                self._on_unavailable()
                return
            except Exception:
                if asking.expired():
                    continue
                logger.exception("model %s: asking Ray for a replica failed", self._model)
            # Ray has a replica that it has not pushed here yet, or an error: asking at once would not help.
            if self._needed():
                await asyncio.sleep(_PAUSE_S)
