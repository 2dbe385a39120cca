"""Replicas of the ingress itself, in proportion to the requests it has open. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from serve_app.autoscaling.knobs import IngressKnobs
from serve_app.autoscaling.signals import STALE_AFTER_S


@dataclass(frozen=True, slots=True)
class IngressDecision:
    """The target, the falling sequence of recent peaks to be handed to the next call, and why."""

    target: int
    peaks: tuple[tuple[float, int], ...]
    reason: str


def decide_ingress(
    reported: dict[str, tuple[float, float]],
    ready: int,
    target: int,
    knobs: IngressKnobs,
    peaks: tuple[tuple[float, int], ...],
    now: float,
) -> IngressDecision:
    """Ingress replicas for the streams they carry: more at once, fewer after the delay.

    Args:
        reported: (ongoing requests, age in seconds) of each replica that reports.
        ready: Ingress replicas that run.
        target: Replicas asked for at present.
        knobs: The operator's.
        peaks: From the last decision.
        now: Unix time, seconds.
    """
    known = [ongoing for ongoing, age in reported.values() if age <= STALE_AFTER_S and math.isfinite(ongoing)]
    ongoing = sum(max(value, 0.0) for value in known)
    # Bounded first: a sum of absurd reports may be infinite, and that cannot be rounded.
    wish = math.ceil(min(ongoing / knobs.target_ongoing_requests, knobs.max_replicas) - 1e-9)
    wish = max(wish, knobs.min_replicas)
    start = now - knobs.downscale_delay_s
    recent = tuple((at, n) for at, n in peaks if start < at <= now and n > wish)
    # The first look after a loss of memory counts as a peak of what there is.
    begin = () if peaks else ((now, target),) if target > wish else ()
    peaks = (*recent, *begin, (now, wish))
    current = min(max(target, knobs.min_replicas), knobs.max_replicas)
    reason = f"{ongoing:.0f} requests are open, {knobs.target_ongoing_requests:g} a replica"
    if len(known) < ready:
        return IngressDecision(
            max(wish, current), peaks, f"{reason}; {ready - len(known)} replicas are silent"
        )
    floor = min(max(n for _, n in peaks), knobs.max_replicas)
    return IngressDecision(max(wish, min(current, floor)), peaks, reason)
