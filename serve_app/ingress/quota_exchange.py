"""One quota over all ingress replicas: each replica has a share of every rate, in proportion to its demand.

Twice a second a replica writes the demand of each key into Ray's key-value store. One replica, the writer,
reads all these reports and writes their total, which the others read. So the bytes of one replica do not grow
with the number of replicas, except for the list of those in the total. All replicas compute their shares from
the same total, so the shares add up to the whole. Any replica may be the writer: if the total is older than
`_WRITER_LOST_S`, the first one to see this writes the next one. If two do, both totals are right, and the
writer of the last one goes on.

A replica that is lost writes no reports, and its share goes to the others after `FRESH_S`. If the store does
not answer, the last shares stay: nobody knows then which replicas are lost.

A report also has what each bucket lacks. The buckets of a new replica begin with less by this, so neither a
restart nor a new replica gives a client another minute's worth.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import inf

import msgspec
from msgspec.structs import astuple

from serve_app.api.quotas import NO_DEMAND, KeyDemand, KeyShare, Quotas
from serve_app.wire.documents import QUOTAS, erase, put_document, read_all, read_document, write
from serve_app.wire.own_clock import OwnClock

logger = logging.getLogger("ray.serve")

FRESH_S = 2.0
"""The demand of an older report does not count."""
INTERVAL_S = 0.5
_WRITER_LOST_S = 1.5
_ERASE_S = 60.0
"""An older report is of a replica that was killed."""
_IDLE_SHARE = 0.02
"""The part of each limit that all replicas share equally, so that a replica without demand can begin."""


class _Report(msgspec.Struct, array_like=True):
    """One replica's demand of each key, written at Unix time `at`."""

    at: float
    keys: dict[str, KeyDemand]
    number: int = 0
    """It counts the replica's reports."""


class _Total(msgspec.Struct, array_like=True):
    """The reports of all replicas, added up by one of them."""

    at: float
    """The Unix time of the writer."""
    writer: str
    reports: dict[str, int]
    """The number of the report that is in the total, by replica. A lost replica is not listed."""
    keys: dict[str, KeyDemand]


_parse_total = partial(msgspec.convert, type=_Total)


def share_of(own: float, others: float, replicas: int) -> float:
    """Return a replica's share of a rate, by its own demand and that of the other `replicas` together.

    The shares of all replicas add up to 1.
    """
    total = own + others
    return (1.0 - _IDLE_SHARE) * (own / total) + _IDLE_SHARE / replicas if total else 1.0 / replicas


def add_up(reports: Iterable[Mapping[str, KeyDemand]]) -> dict[str, KeyDemand]:
    """Return the demand of each key in all reports together."""
    found = defaultdict[str, list[tuple[float, ...]]](list)
    for key, demand in chain.from_iterable(report.items() for report in reports):
        found[key].append(astuple(demand))
    sums = {key: map(sum, zip(*demands, strict=True)) for key, demands in found.items()}
    return {key: KeyDemand(*[round(number, 6) for number in numbers]) for key, numbers in sums.items()}


def shares_of(
    own: Mapping[str, KeyDemand],
    total: Mapping[str, KeyDemand],
    counted: Mapping[str, KeyDemand],
    replicas: int,
) -> dict[str, KeyShare]:
    """Return this replica's share of each key, by its `own` demand and what the total has `counted` of it.

    A new bucket begins with less by what other buckets lack. It begins with a debt only if the replica is
    alone. Among several, it would refuse its part of the rate for minutes.
    """
    shares = {}
    least = 0.0 if replicas > 1 else -inf
    for key in {*own, *total}:
        mine = own.get(key, NO_DEMAND)
        others = _without(total.get(key, NO_DEMAND), counted.get(key, NO_DEMAND))
        tokens = share_of(mine.tokens_per_s, others.tokens_per_s, replicas)
        requests = share_of(mine.requests_per_s, others.requests_per_s, replicas)
        shares[key] = KeyShare(
            tokens,
            requests,
            others.open_requests,
            others.open_background,
            mine,
            max(least, tokens * (1.0 - others.tokens_missing)),
            max(least, requests * (1.0 - others.requests_missing)),
        )
    return shares


def _without(total: KeyDemand, counted: KeyDemand) -> KeyDemand:
    both = zip(astuple(total), astuple(counted), strict=True)
    return KeyDemand(*[max(0, round(of_all - own, 6)) for of_all, own in both])


@dataclass(eq=False)
class QuotaReports:
    """The reports of one application's ingress replicas, as one of them writes and reads them."""

    app: str
    replica: str
    clock: Callable[[], float] = time.monotonic
    """Seconds on a clock that never goes back."""
    wall: Callable[[], float] = time.time
    """Unix time in seconds."""
    _number: int = field(default=0, init=False)
    _sent: deque[tuple[int, Mapping[str, KeyDemand]]] = field(
        default_factory=lambda: deque(maxlen=8), init=False
    )
    """The newest reports, by number. The total has one of the last `FRESH_S`."""
    _own_clock: OwnClock = field(default_factory=OwnClock, init=False)

    def exchange(self, demands: Mapping[str, KeyDemand]) -> tuple[int, dict[str, KeyShare]]:
        """Write this replica's demand. Return the number of replicas, and this replica's shares by key.

        It calls Ray's GCS twice, at about 0.5 ms for each call. The writer of the total calls it five times.
        """
        self._number += 1
        self._sent.append((self._number, demands))
        report, prefix = _Report(self.wall(), dict(demands), self._number), f"quotas/{self.app}/"
        write(prefix + self.replica, msgspec.json.encode(report))
        now, total = self.clock(), read_document(QUOTAS, self.app, _parse_total)
        if total is not None:
            at = self._own_clock.times("total", {total.writer: total.at}, now, self.wall())[total.writer]
        if total is None or total.writer == self.replica or now - at > _WRITER_LOST_S:
            total = self._add_up(prefix, now)
            put_document(QUOTAS, self.app, msgspec.to_builtins(total))
        counted = dict(self._sent).get(total.reports.get(self.replica, 0))
        replicas = len(total.reports) + (counted is None)
        return replicas, shares_of(demands, total.keys, counted or {}, replicas)

    def _add_up(self, prefix: str, now: float) -> _Total:
        """Return the total of all reports. Erase those of killed replicas."""
        reports = read_all(prefix, msgspec.json.Decoder(_Report).decode)
        stamps = {replica: report.at for replica, report in reports.items()}
        fresh, lost = [], []
        for replica, at in self._own_clock.times("quotas", stamps, now, self.wall()).items():
            if now - at <= FRESH_S:
                fresh.append(replica)
                continue
            left = _left(reports[replica].keys, (now - at) / 60.0)
            if now - at <= _ERASE_S or any(
                each.tokens_missing or each.requests_missing for each in left.values()
            ):
                lost.append(left)
            else:
                erase(prefix + replica)
        numbers = {replica: reports[replica].number for replica in fresh}
        keys = add_up([*(reports[replica].keys for replica in fresh), *lost])
        return _Total(self.wall(), self.replica, numbers, keys)


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
