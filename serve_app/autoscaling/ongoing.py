"""Replicas in proportion to ongoing requests: Ray Serve's own law, on a count that sees the relay.

Relayed requests do not pass through Ray's handles, so Ray cannot count them; each replica reports
what is open on its data plane instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

ONGOING_REQUESTS = "ongoing_requests"


def replicas_for(ongoing: float, target: float) -> int:
    """`ceil(ongoing / target)`, the number of replicas that `ongoing` requests call for."""
    return math.ceil(ongoing / target) if ongoing > 0 else 0


def desired_replicas(ctx: Any) -> tuple[int, dict[str, Any]]:
    """Ray Serve's policy hook. Bounds and delays are applied by Ray to what it returns.

    Args:
        ctx: Ray's `AutoscalingContext`.
    """
    reported: Mapping[Any, Any] = (ctx.aggregated_metrics or {}).get(ONGOING_REQUESTS, {})
    relayed = sum(float(value) for value in reported.values())
    queued = float(ctx.total_queued_requests or 0)
    handled = float(ctx.total_num_requests or 0) - queued  # what came through Ray's handles instead
    ongoing = max(relayed, handled) + queued
    return replicas_for(ongoing, ctx.config.target_ongoing_requests), {}
