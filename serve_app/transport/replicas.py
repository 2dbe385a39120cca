"""Picking an engine replica through Ray Serve, and holding a slot on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle, ReplicaSelection

from serve_app.api.errors import ApiError


def unavailable(model: str, why: str, retry_after_s: int = 5) -> ApiError:
    """A 503 for a model no replica of which can take the request."""
    return ApiError(
        503, f"Model {model!r}: {why}", code="model_unavailable", headers={"Retry-After": str(retry_after_s)}
    )


def queue_full(model: str) -> ApiError:
    """A 429 for a model with as many requests waiting as Ray may hold."""
    return ApiError(
        429,
        f"Model {model!r}: too many requests are waiting.",
        code="queue_full",
        headers={"Retry-After": "1"},
    )


@asynccontextmanager
async def reserved_replica(
    handle: DeploymentHandle, model: str, timeout_s: float
) -> AsyncIterator[ReplicaSelection]:
    """A replica chosen by Ray's router, with a slot that counts as ongoing and delays its drain.

    Raises:
        ApiError: 429 when Ray's queue is full, 503 when none comes within `timeout_s` seconds.
    """
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(timeout_s):
                selection = await stack.enter_async_context(handle.choose_replica())
        except TimeoutError:
            raise unavailable(model, f"no replica could take the request within {timeout_s:g} s.") from None
        except BackPressureError:
            raise queue_full(model) from None
        except DeploymentUnavailableError:
            raise unavailable(model, "its engines cannot start; see /ready.", 30) from None
        yield selection
