"""The policy's documents and the knobs in force, for `/autoscaling/decisions` and `/autoscaling/knobs`."""

import time
from collections.abc import Callable
from typing import Any

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.ingress.knob_applier import KnobApplier
from serve_app.wire.documents import DECISIONS, STATUS, parse_records, parse_status, read_document
from serve_app.wire.own_clock import OwnClock

_FRESH_S = 0.5
_WAIT_S = 0.4
"""For each of two documents, so that `/autoscaling/decisions` answers within a second."""


class PolicyView:
    """An ingress replica's `AutoscalingView`: it reads the documents that the policy of `app` has stored.

    `adapters` returns the loaded adapters that this ingress replica knows of.
    """

    def __init__(
        self,
        app: str,
        knobs: KnobApplier,
        adapters: Callable[[], dict[str, dict[str, int]]] = dict,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self.knobs = knobs.document
        self.adapters = adapters
        self._clock = clock
        self._unix_clock = unix_clock
        self._own_clock = OwnClock()
        self._status = BoundedCall(
            f"{STATUS} of {app}", lambda: read_document(STATUS, app, parse_status), _FRESH_S, clock
        )
        self._decisions = BoundedCall(
            f"{DECISIONS} of {app}", lambda: read_document(DECISIONS, app, parse_records), _FRESH_S, clock
        )

    async def status(self) -> dict[str, Any] | None:
        answer = await self._status.get(_WAIT_S)
        if answer is None or answer.value is None:
            return None
        now, at = self._clock(), float(answer.value["at"])
        since = self._own_clock.times(STATUS, {STATUS: at}, now, self._unix_clock())[STATUS]
        return {**answer.value, "age_s": round(now - since, 3)}

    async def decisions(self) -> list[dict[str, Any]]:
        answer = await self._decisions.get(_WAIT_S)
        return list(answer.value or ()) if answer is not None else []

    def age_s(self) -> float | None:
        ages = [age for age in (self._status.age_s(), self._decisions.age_s()) if age is not None]
        return max(ages, default=None)
