"""How many replicas the ingress itself should have: in proportion to its open requests. Pure."""

import math
from dataclasses import dataclass

from serve_app.policy.explanation import are, counted
from serve_app.settings.knobs import IngressKnobs
from serve_app.wire.signals import STALE_AFTER_S


@dataclass(frozen=True, slots=True)
class IngressDecision:
    """How many ingress replicas there should be, and why."""

    target: int
    wanted: int
    """The target if there were room for any number of replicas."""
    peaks: tuple[tuple[float, int], ...]
    """The falling sequence of recent peaks, to pass to the next call."""
    reason: str


def decide_ingress(
    reported: dict[str, tuple[float, float]],
    ready: int,
    target: int,
    knobs: IngressKnobs,
    peaks: tuple[tuple[float, int], ...],
    now: float,
    room: int | None = None,
) -> IngressDecision:
    """Decide for the ingress: more replicas at once, fewer after the delay.

    Requests that are held do not count as open: they wait for an engine replica, and another ingress replica
    could take its room.

    `reported` is (open requests, age in seconds) of each replica that reports, `ready` the ingress replicas
    that run, `target` those asked for, `peaks` what the last decision returned, and `room` the replicas that
    may be added without taking what engine replicas need, None for any number.
    """
    known = [ongoing for ongoing, age in reported.values() if age <= STALE_AFTER_S and math.isfinite(ongoing)]
    ongoing = sum(max(value, 0.0) for value in known)
    # Bounded first: a sum of absurd reports may be infinite, and that cannot be rounded.
    needed = math.ceil(min(ongoing / knobs.target_ongoing_requests, knobs.max_replicas) - 1e-9)
    wanted = max(needed, knobs.min_replicas)
    start = now - knobs.downscale_delay_s
    recent = tuple((at, n) for at, n in peaks if start < at <= now and n > wanted)
    # After a loss of memory the present target counts as a peak.
    first = () if peaks else ((now, target),) if target > wanted else ()
    peaks = (*recent, *first, (now, wanted))
    current = min(max(target, knobs.min_replicas), knobs.max_replicas)
    reason = (
        f"{are(ongoing, 'request')} open. One ingress replica may have {knobs.target_ongoing_requests:g}, "
        f"so {are(needed, 'replica')} needed."
    )
    if len(known) < ready:
        reason += f" {counted(ready - len(known), 'replica')} did not report, so no replica is removed."
        wanted = max(wanted, current)
    else:
        floor = min(max(n for _, n in peaks), knobs.max_replicas)
        wanted = max(wanted, min(current, floor))
    allowed = wanted if room is None else max(min(wanted, target + room), min(wanted, target))
    if allowed < wanted:
        reason += f" There is room for {allowed}, because engine replicas need the rest."
    return IngressDecision(allowed, wanted, peaks, reason)
