"""What a client is told when no replica can take its request."""

from __future__ import annotations

import math

from serve_app.api.errors import ApiError
from serve_app.ingress.cold_start_progress import Outlook

DEFAULT_RETRY_AFTER_S = 30
"""When nothing is known of how long a replica will take."""
_LOST_RETRY_AFTER_S = 5
_BUSY_RETRY_AFTER_S = 1


def retry_after(outlook: Outlook) -> str:
    """The `Retry-After` header for a model that has no replica yet: whole seconds, at least one."""
    return str(DEFAULT_RETRY_AFTER_S if outlook.eta_s is None else max(1, math.ceil(outlook.eta_s)))


def unavailable(model: str, why: str, retry_after_s: int = _LOST_RETRY_AFTER_S) -> ApiError:
    """A 503 for a model no replica of which can take the request."""
    return ApiError(
        503, f"Model {model!r}: {why}", code="model_unavailable", headers={"Retry-After": str(retry_after_s)}
    )


def cannot_start(model: str) -> ApiError:
    """A 503 for a model whose engines fail to start."""
    return unavailable(model, "its engines cannot start; see /ready.", DEFAULT_RETRY_AFTER_S)


def replicas_busy(model: str, limit: int) -> ApiError:
    """A 429 for a model each replica of which has as many requests as it may have."""
    return ApiError(
        429,
        f"Model {model!r}: every replica has {limit} requests of this ingress replica already "
        f"(max_ongoing_requests = {limit}).",
        code="queue_full",
        headers={"Retry-After": str(_BUSY_RETRY_AFTER_S)},
    )


def too_many_held(model: str, held: int, bound: int, outlook: Outlook) -> ApiError:
    """A 429 for a model without a replica for the request, and with as many requests held as may be."""
    return ApiError(
        429,
        f"Model {model!r}: no replica can take the request yet, and this ingress replica holds {held} "
        f"others for one already (max_held_requests = {bound}).",
        code="queue_full",
        headers={"Retry-After": retry_after(outlook)},
    )


def waited_too_long(model: str, timeout_s: float, outlook: Outlook) -> ApiError:
    """A 503 for a request that was held until its deadline."""
    return ApiError(
        503,
        f"Model {model!r}: no replica could take the request within {timeout_s:g} s "
        f"(cold_wait_timeout_s = {timeout_s:g}); phase: {outlook.phase}.",
        code="cold_wait_timeout",
        headers={"Retry-After": retry_after(outlook)},
    )
