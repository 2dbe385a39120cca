"""One quota over all ingress replicas: each replica has a share of every rate, in proportion to its demand.

Twice a second a replica writes the demand of each key into Ray's key-value store, and reads the demand at
the other replicas. All replicas compute the shares from the same reports, so the shares add up to the whole.
A replica that is lost writes no reports, and its share goes to the others after `FRESH_S`. If the store does
not answer, the last shares stay: nobody knows then which replicas are lost.

A report also has what each bucket lacks. The buckets of a new replica begin with less by this, so neither a
restart nor a new replica gives a client another minute's worth.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import inf

import msgspec

from serve_app.api.quotas import NO_DEMAND, KeyDemand, KeyShare, Quotas
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


class _Report(msgspec.Struct, array_like=True):
    """One replica's demand of each key, written at Unix time `at`."""

    at: float
    keys: dict[str, KeyDemand]


def share_of(own: float, others: Sequence[float], idle: int = 0) -> float:
    """Return a replica's share of a rate, by its own demand, the others', and the number without demand.

    The shares of all replicas add up to 1.
    """
    total, replicas = own + sum(others), 1 + len(others) + idle
    if not total:
        return 1.0 / replicas
    least = _FLOOR * total / replicas
    weight = max(own, least)
    return weight / (weight + sum([max(other, least) for other in others]) + idle * least)


def shares_of(
    own: Mapping[str, KeyDemand],
    others: Sequence[Mapping[str, KeyDemand]],
    lost: Sequence[Mapping[str, KeyDemand]] = (),
) -> dict[str, KeyShare]:
    """Return this replica's share of each key in any report, of this replica, the others or lost ones.

    A new bucket begins with less by what other buckets lack. It begins with a debt only if the replica is
    alone. Among several, it would refuse its part of the rate for minutes.
    """
    shares = {}
    least = 0.0 if others else -inf
    for key in {*own, *chain(*others, *lost)}:
        mine, demands = own.get(key, NO_DEMAND), [report[key] for report in others if key in report]
        used = demands + [report[key] for report in lost if key in report]
        idle = len(others) - len(demands)
        tokens = share_of(mine.tokens_per_s, [each.tokens_per_s for each in demands], idle)
        requests = share_of(mine.requests_per_s, [each.requests_per_s for each in demands], idle)
        shares[key] = KeyShare(
            tokens,
            requests,
            sum([each.open_requests for each in demands]),
            sum([each.open_background for each in demands]),
            mine,
            max(least, tokens * (1.0 - sum([each.tokens_missing for each in used]))),
            max(least, requests * (1.0 - sum([each.requests_missing for each in used]))),
        )
    return shares


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
        write(self._prefix + self._replica, msgspec.json.encode(_Report(self._wall(), dict(demands))))
        reports = read_all(self._prefix, msgspec.json.Decoder(_Report).decode)
        reports.pop(self._replica, None)
        now = self._clock()
        stamps = {replica: report.at for replica, report in reports.items()}
        fresh, lost = [], []
        for replica, at in self._own_clock.times("quotas", stamps, now, self._wall()).items():
            if now - at <= FRESH_S:
                fresh.append(reports[replica].keys)
            else:
                left = _left(reports[replica].keys, (now - at) / 60.0)
                if now - at <= _ERASE_S or any(
                    each.tokens_missing or each.requests_missing for each in left.values()
                ):
                    lost.append(left)
                else:
                    erase(self._prefix + replica)
        return 1 + len(fresh), shares_of(demands, fresh, lost)


def _left(keys: Mapping[str, KeyDemand], minutes: float) -> dict[str, KeyDemand]:
    """Return what buckets of a lost replica still lack, had they been filled since its report."""
    return {
        key: KeyDemand(
            tokens_missing=max(0.0, demand.tokens_missing - minutes),
            requests_missing=max(0.0, demand.requests_missing - minutes),
        )
        for key, demand in keys.items()
    }


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
