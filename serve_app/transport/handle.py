"""The data plane through Ray Serve's own deployment handle: slower, and with no port of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from serve_app.api.client import EVENT_STREAM, EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.settings.tree import ModelSettings
from serve_app.transport.waiting import queue_full, unavailable


class HandleClient:
    """Reaches a model's engine replicas through Ray Serve's handle; arguments as `RelayClient`."""

    def __init__(self, model: ModelSettings, handle: DeploymentHandle, replica_wait_timeout_s: float) -> None:
        self._model = model.name
        # By reference, every item would go through Ray's object store: 0.35 ms instead of 0.1.
        self._handle = handle.options(stream=True)
        self._wait_s = replica_wait_timeout_s

    @asynccontextmanager
    async def call(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        """Run `request` on a replica, over Ray."""
        items: Any = self._handle.call.remote(
            request.operation, request.body, request.request_id, request.waited_s
        )
        try:
            reply = await self._open(items)
            yield reply
        finally:
            # An abandoned generator would run to its end in the engine. One that was never assigned to
            # a replica raises why, which `_open` has reported already.
            with suppress(DeploymentUnavailableError, BackPressureError):
                items.cancel()

    async def _open(self, items: Any) -> EngineReply:
        try:
            async with asyncio.timeout(self._wait_s):
                status, content_type, headers = await anext(items)
                first = await anext(items)
        except TimeoutError:
            raise unavailable(self._model, f"no replica answered within {self._wait_s:g} s.") from None
        except BackPressureError:
            raise queue_full(self._model) from None
        except DeploymentUnavailableError:
            raise unavailable(self._model, "its engines cannot start; see /ready.", 30) from None
        except (RayActorError, RayTaskError) as error:
            raise unavailable(self._model, "the engine replica was lost.") from error
        if content_type != EVENT_STREAM:
            return EngineReply(status, first, headers=headers)
        return EngineReply(status, stream=self._relay(first, items), headers=headers)

    async def _relay(self, first: bytes, items: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield first
        try:
            async for chunk in items:
                yield chunk
        except (RayActorError, RayTaskError):
            yield ApiError(
                502,
                f"Model {self._model!r}: the engine replica was lost while it was generating.",
                code="replica_lost",
            ).last_frames()
