"""The errors for requests that no replica can take, or that lose their replica."""

import math

from serve_app.api.errors import ApiError
from serve_app.ingress.cold_start_progress import ColdStartProgress

DEFAULT_RETRY_AFTER_S = 30
"""For an unknown ETA."""
_LOST_RETRY_AFTER_S = 5
_BUSY_RETRY_AFTER_S = 1


def retry_after(progress: ColdStartProgress) -> str:
    """Return the `Retry-After` header for a model without a replica: whole seconds, at least one."""
    return str(DEFAULT_RETRY_AFTER_S if progress.eta_s is None else max(1, math.ceil(progress.eta_s)))


def _refusal(status: int, model: str, why: str, code: str, retry_after_s: object) -> ApiError:
    return ApiError(status, f"Model {model!r}: {why}", code=code, headers={"Retry-After": str(retry_after_s)})


def unavailable(model: str, why: str, retry_after_s: int = _LOST_RETRY_AFTER_S) -> ApiError:
    """A 503: no replica of the model can take the request."""
    return _refusal(503, model, why, "model_unavailable", retry_after_s)


def replaced(model: str) -> ApiError:
    """A 503: a stream cannot continue, because the model's name now stands for other weights."""
    return unavailable(model, "the weights that began the answer have been replaced.")


def cannot_start(model: str) -> ApiError:
    """A 503: the model's engines fail to start."""
    return unavailable(model, "its engines cannot start; see /ready.", DEFAULT_RETRY_AFTER_S)


def replicas_busy(model: str, limit: int) -> ApiError:
    """A 429: each replica of the model has `limit` requests."""
    why = (
        f"every replica already has {limit} requests from this ingress replica "
        f"(max_ongoing_requests = {limit})."
    )
    return _refusal(429, model, why, "queue_full", _BUSY_RETRY_AFTER_S)


def queue_is_full(model: str, queued: int, bound: int, progress: ColdStartProgress) -> ApiError:
    """A 429: no replica can take the request, and the queue is full."""
    why = (
        f"no replica can take the request yet, and this ingress replica already queues {queued} others "
        f"(max_held_requests = {bound})."
    )
    return _refusal(429, model, why, "queue_full", retry_after(progress))


def waited_too_long(model: str, timeout_s: float, progress: ColdStartProgress) -> ApiError:
    """A 503: the request was queued until its deadline."""
    why = (
        f"no replica could take the request within {timeout_s:g} s "
        f"(cold_wait_timeout_s = {timeout_s:g}); phase: {progress.phase}."
    )
    return _refusal(503, model, why, "cold_wait_timeout", retry_after(progress))


def replica_lost(model: str) -> ApiError:
    """A 502, sent as an event: the replica was lost after the first event of the stream."""
    return ApiError(
        502, f"Model {model!r}: the engine replica was lost while it was generating.", code="replica_lost"
    )
