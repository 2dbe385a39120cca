"""The number of ingress replicas, in proportion to open requests. Pure."""

import math
from dataclasses import dataclass

from serve_app.policy.reasons import are, counted
from serve_app.policy.state import Need
from serve_app.settings.knobs import IngressKnobs
from serve_app.wire.signals import STALE_AFTER_S


@dataclass(frozen=True, slots=True)
class IngressDecision:
    """The target of the ingress, and the reason."""

    target: int
    wanted: int
    """The target without a limit on room."""
    recent_needs: tuple[Need, ...]
    """Falling maxima of recent needs, for the next call."""
    reason: str


def decide_ingress(
    reported: dict[str, tuple[float, float]],
    ready: int,
    target: int,
    knobs: IngressKnobs,
    recent_needs: tuple[Need, ...],
    now: float,
    room: int | None = None,
) -> IngressDecision:
    """Decide for the ingress: scale up at once, scale down after the delay.

    Requests that are queued for a cold start do not count as open. They wait for an engine replica, and
    another ingress replica could take the room of that engine.

    Args:
        reported: (Open requests, age in seconds) by replica.
        ready: Running ingress replicas.
        recent_needs: From the last decision.
        now: Unix time in seconds.
        room: Replicas that may be added without taking room that engines need; None for no limit.
    """
    known = [ongoing for ongoing, age in reported.values() if age <= STALE_AFTER_S and math.isfinite(ongoing)]
    ongoing = sum(max(value, 0.0) for value in known)
    # Bounded before rounding, because a sum of invalid reports may be infinite.
    needed = math.ceil(min(ongoing / knobs.target_ongoing_requests, knobs.max_replicas) - 1e-9)
    wanted = max(needed, knobs.min_replicas)
    start = now - knobs.downscale_delay_s
    recent = [need for need in recent_needs if start < need.at <= now and need.replicas > wanted]
    # After a loss of memory the present target counts as needed.
    first = [Need(now, target)] if not recent_needs and target > wanted else []
    needs = (*recent, *first, Need(now, wanted))
    current = min(max(target, knobs.min_replicas), knobs.max_replicas)
    reason = (
        f"{are(ongoing, 'request')} open. One ingress replica may have {knobs.target_ongoing_requests:g}, "
        f"so {are(needed, 'replica')} needed."
    )
    if len(known) < ready:
        reason += f" {counted(ready - len(known), 'replica')} did not report, so no replica is removed."
        wanted = max(wanted, current)
    else:
        floor = min(needs[0].replicas, knobs.max_replicas)
        wanted = max(wanted, min(current, floor))
    allowed = wanted if room is None else max(min(wanted, target + room), min(wanted, target))
    if allowed < wanted:
        reason += f" There is room for {allowed}, because engine replicas need the rest."
    return IngressDecision(allowed, wanted, needs, reason)
