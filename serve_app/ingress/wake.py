"""Asking Ray for a replica while requests are held: one queued request, however many they are."""

import asyncio
import logging
from collections.abc import Callable

from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from serve_app.patches.ray import run_router_here

logger = logging.getLogger("ray.serve")

# Only a new request is told that the engines cannot start; one that is queued already waits on.
_ASK_AGAIN_S = 5.0
_PAUSE_S = 1.0


class Wake:
    """Keeps one request in Ray Serve's queue as long as a replica is needed.

    The policy starts replicas for what the ingress reports. This one queued request has Ray make its
    router and say when the engines cannot start, and is what Ray's own policy would act on.

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
            except BackPressureError as error:
                logger.warning("model %s: Ray's queue is full: %s", self._model, error)
            except TimeoutError:
                if asking.expired():
                    continue
                logger.exception("model %s: asking Ray for a replica failed", self._model)
            except Exception:
                logger.exception("model %s: asking Ray for a replica failed", self._model)
            # Ray has a replica that it has not pushed here yet, or an error: asking at once would not help.
            if self._needed():
                await asyncio.sleep(_PAUSE_S)
