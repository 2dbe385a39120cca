"""One quota over all ingress replicas: each replica has a share of every rate, in proportion to its demand.

Twice a second a replica writes the demand of each key into Ray's key-value store, and reads the demand at
the other replicas. All replicas compute the shares from the same reports, so the shares add up to the whole.
A replica that is lost writes no reports, and its share goes to the others after `FRESH_S`. If the store does
not answer, the last shares stay: nobody knows then which replicas are lost.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple
from math import isfinite

from serve_app.api.quotas import KeyDemand, KeyShare, Quotas
from serve_app.wire.documents import erase, read_all, write
from serve_app.wire.own_clock import OwnClock

logger = logging.getLogger("ray.serve")

FRESH_S = 2.0
"""The demand of an older report does not count."""
INTERVAL_S = 0.5
_ERASE_S = 60.0
"""An older report is of a replica that was killed."""
_FLOOR = 0.02
"""The part of an equal share that a replica without demand keeps, so that it can begin. With N replicas, at
most 2 % of a limit lie idle for it."""

Report = tuple[float, dict[str, KeyDemand]]
"""The Unix time at which a replica wrote it, and the demand of each key."""


def divide(demands: Mapping[str, float]) -> dict[str, float]:
    """Return each replica's share of a rate, from its demand. The shares add up to 1."""
    total = sum(demands.values())
    least = _FLOOR * total / len(demands)
    weights = {replica: max(demand, least) if total else 1.0 for replica, demand in demands.items()}
    whole = sum(weights.values())
    return {replica: weight / whole for replica, weight in weights.items()}


def shares_of(replica: str, reports: Mapping[str, Mapping[str, KeyDemand]]) -> dict[str, KeyShare]:
    """Return the shares of `replica` for each key in any of the replicas' `reports`."""
    found = {}
    for key in {key for report in reports.values() for key in report}:
        demands = {each: report.get(key, KeyDemand()) for each, report in reports.items()}
        found[key] = KeyShare(
            divide({each: demand.tokens_per_s for each, demand in demands.items()})[replica],
            divide({each: demand.requests_per_s for each, demand in demands.items()})[replica],
            sum(demand.open_requests for each, demand in demands.items() if each != replica),
        )
    return found


class QuotaReports:
    """The reports of one application's ingress replicas, as one of them writes and reads them.

    Args:
        clock: Seconds on a clock that never goes back.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        app: str,
        replica: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._prefix = f"quotas/{app}/"
        self._replica = replica
        self._clock = clock
        self._wall = wall
        self._own_clock = OwnClock()

    def exchange(self, demands: Mapping[str, KeyDemand]) -> tuple[int, dict[str, KeyShare]]:
        """Write this replica's demand. Return the number of replicas, and this replica's shares by key.

        It calls Ray's GCS, at about 0.5 ms for each replica.
        """
        document = {"at": self._wall(), "keys": {key: astuple(demand) for key, demand in demands.items()}}
        write(self._prefix + self._replica, json.dumps(document, separators=(",", ":")).encode())
        reports = read_all(self._prefix, _parse)
        now = self._clock()
        stamps = {replica: at for replica, (at, _) in reports.items()}
        fresh = {self._replica: demands}
        for replica, at in self._own_clock.times("quotas", stamps, now, self._wall()).items():
            if replica == self._replica:
                continue
            if now - at <= FRESH_S:
                fresh[replica] = reports[replica][1]
            elif now - at > _ERASE_S:
                erase(self._prefix + replica)
        return len(fresh), shares_of(self._replica, fresh)


async def share_quotas(
    reports: QuotaReports, quotas: Quotas, is_needed: Callable[[], bool], interval_s: float = INTERVAL_S
) -> None:
    """Exchange the demand of keys every `interval_s` while it `is_needed()`. It never returns."""
    failing = False
    while True:
        try:
            if is_needed():
                demands = quotas.demands()  # not in the thread: it reads objects of the event loop
                quotas.share(*await asyncio.to_thread(reports.exchange, demands))
            failing = False
        except Exception:
            # The GCS does not answer. The last shares stay.
            if not failing:
                logger.warning("the quotas of API keys cannot be exchanged", exc_info=True)
            failing = True
        await asyncio.sleep(interval_s)


def _parse(data: bytes) -> Report:
    found = json.loads(data)
    keys = {
        str(key): KeyDemand(float(tokens), float(requests), int(open_requests))
        for key, (tokens, requests, open_requests, *_) in found["keys"].items()
    }
    at = float(found["at"])
    if not all(map(isfinite, (at, *(each.tokens_per_s + each.requests_per_s for each in keys.values())))):
        raise ValueError("numbers must be finite")
    return at, keys
