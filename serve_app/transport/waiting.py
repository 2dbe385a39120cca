"""Waiting in Ray Serve's queue for a replica: it wakes an application that idles at zero."""

from __future__ import annotations

import asyncio

from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from serve_app.api.errors import ApiError


def unavailable(model: str, why: str, retry_after_s: int = 5) -> ApiError:
    """A 503 for a model no replica of which can take the request."""
    return ApiError(
        503, f"Model {model!r}: {why}", code="model_unavailable", headers={"Retry-After": str(retry_after_s)}
    )


def queue_full(model: str) -> ApiError:
    """A 429 for a model with as many requests waiting as may wait."""
    return ApiError(
        429,
        f"Model {model!r}: too many requests are waiting.",
        code="queue_full",
        headers={"Retry-After": "1"},
    )


async def wait_for_replica(handle: DeploymentHandle, model: str, timeout_s: float, allowed_s: float) -> None:
    """Return once a replica of `handle`'s deployment could take a request.

    Raises:
        ApiError: 429 when Ray's queue is full, 503 when none comes within `timeout_s` seconds, what is
            left of the `allowed_s` a request may wait, or when the engines cannot start.
    """
    try:
        async with asyncio.timeout(timeout_s), handle.choose_replica():
            return
    except TimeoutError:
        raise unavailable(model, f"no replica could take the request within {allowed_s:g} s.") from None
    except BackPressureError:
        raise queue_full(model) from None
    except DeploymentUnavailableError:
        raise unavailable(model, "its engines cannot start; see /ready.", 30) from None
