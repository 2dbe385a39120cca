"""How many replicas the ingress itself should have: in proportion to its open requests. Pure."""

import math
from dataclasses import dataclass

from serve_app.policy.inputs import Need
from serve_app.policy.reasons import are, counted
from serve_app.settings.knobs import IngressKnobs
from serve_app.wire.signals import STALE_AFTER_S


@dataclass(frozen=True, slots=True)
class IngressDecision:
    """How many ingress replicas there should be, and why."""

    target: int
    wanted: int
    """The target if there were room for any number of replicas."""
    recent_needs: tuple[Need, ...]
    """Falling maxima of what was needed, to pass to the next call."""
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
    """Decide for the ingress: more replicas at once, fewer after the delay.

    Requests that are queued for a cold start do not count as open: they wait for an engine replica, and
    another ingress replica could take the room of that engine.

    `reported` is (open requests, age in seconds) of each replica that reports, `ready` the ingress replicas
    that run, `target` those asked for, and `recent_needs` what the last decision returned. `room` is how many
    replicas may be added without taking what engine replicas need, None for any number.
    """
    known = [ongoing for ongoing, age in reported.values() if age <= STALE_AFTER_S and math.isfinite(ongoing)]
    ongoing = sum(max(value, 0.0) for value in known)
    # Bounded first: a sum of absurd reports may be infinite, and that cannot be rounded.
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
