"""Replicas of the ingress itself, in proportion to the requests it has open. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from serve_app.settings.knobs import IngressKnobs
from serve_app.wire.signals import STALE_AFTER_S


@dataclass(frozen=True, slots=True)
class IngressDecision:
    """What came of one look."""

    target: int
    wanted: int
    """The target if there were room for any number."""
    peaks: tuple[tuple[float, int], ...]
    """The falling sequence of recent peaks, to be handed to the next call."""
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
    """Ingress replicas for the requests they carry: more at once, fewer after the delay.

    Requests that are held are not carried (`ONGOING_REQUESTS`): they wait for an engine replica, and another
    ingress replica would take its room.

    Args:
        reported: (requests carried, age in seconds) of each replica that reports.
        ready: Ingress replicas that run.
        target: Replicas asked for at present.
        knobs: The operator's.
        peaks: From the last decision.
        now: Unix time, seconds.
        room: Replicas that may be added without taking what engine replicas need; None for any number.
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
    reason = (
        f"{ongoing:.0f} requests are carried; the target is {knobs.target_ongoing_requests:g} per replica"
    )
    if len(known) < ready:
        reason += f"; {ready - len(known)} replicas are silent"
        wish = max(wish, current)
    else:
        floor = min(max(n for _, n in peaks), knobs.max_replicas)
        wish = max(wish, min(current, floor))
    allowed = wish if room is None else max(min(wish, target + room), min(wish, target))
    if allowed < wish:
        reason += f"; {wish} replicas are wanted, and engine replicas need the room"
    return IngressDecision(allowed, wish, peaks, reason)
