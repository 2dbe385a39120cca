"""From Ray Serve's autoscaling contexts to readings of signals. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import isfinite
from operator import attrgetter, itemgetter
from typing import Any

from serve_app.wire.ingress_reports import IngressReport
from serve_app.wire.signals import (
    ENGINE_FIELDS,
    INGRESS_FIELDS,
    ONGOING_REQUESTS,
    EngineSignals,
    IngressSignals,
    Reading,
    ingress_key,
)

_newest = itemgetter(-1)
_value = attrgetter("value")
_timestamp = attrgetter("timestamp")

RawMetrics = Mapping[str, Mapping[Any, Sequence[Any]]]
"""Ray's `raw_metrics`: by name and replica, a series of samples with `timestamp` and `value`."""


def running_ids(ctx: Any) -> frozenset[str]:
    """Return the ids of the replicas that Ray counts as running."""
    return frozenset(str(replica.unique_id) for replica in ctx.running_replicas)


def engine_readings(raw: RawMetrics, now: float) -> dict[str, Reading[EngineSignals]]:
    """Return the newest report of every engine replica that has made one, by replica id."""
    return {
        replica: Reading(EngineSignals(*values), age)
        for replica, age, values in _rows(raw, ENGINE_FIELDS, now)
    }


def ingress_readings(raw: RawMetrics, deployment: str, now: float) -> dict[str, Reading[IngressSignals]]:
    """Return the newest report of every ingress replica about the model of engine deployment `deployment`."""
    names = tuple(ingress_key(deployment, name) for name in INGRESS_FIELDS)
    return {replica: Reading(IngressSignals(*values), age) for replica, age, values in _rows(raw, names, now)}


def reported_readings(
    reports: Mapping[str, IngressReport], deployment: str, known: Container[str], now: float
) -> dict[str, Reading[IngressSignals]]:
    """Return the fresh written reports of ingress replicas that hold requests and are not `known` from Ray.

    They drain, or the controller has just restarted. Stale reports were left by replicas that were killed.
    """
    names = [ingress_key(deployment, name) for name in INGRESS_FIELDS]
    readings = {}
    for replica, report in reports.items():
        if replica in known or any(name not in report.values for name in names):
            continue
        signals = IngressSignals(*[report.values[name] for name in names])
        reading = Reading(signals, max(0.0, now - report.at))
        if reading.fresh:
            readings[replica] = reading
    return readings


def ongoing_of_ingress(raw: RawMetrics, now: float) -> dict[str, tuple[float, float]]:
    """Return (open requests, age in seconds) of every ingress replica that has reported."""
    return {replica: (values[0], age) for replica, age, values in _rows(raw, (ONGOING_REQUESTS,), now)}


def _rows(raw: RawMetrics, names: Sequence[str], now: float) -> list[tuple[str, float, tuple[float, ...]]]:
    """Return (replica id, age, newest values in the order of `names`) of replicas that report all of them."""
    columns = [raw[name] for name in names if name in raw]
    if len(columns) < len(names):
        return []
    replicas = list(columns[0])
    # Ray fills every column in the order of the replicas, so whole columns can be read at once: for
    # 1,000 replicas that is a third of the time of looking up each value by its replica.
    if not all(list(column) == replicas and all(column.values()) for column in columns):
        replicas = [replica for replica in replicas if all(column.get(replica) for column in columns)]
        columns = [{replica: column[replica] for replica in replicas} for column in columns]
    values = zip(*[map(_value, map(_newest, column.values())) for column in columns], strict=True)
    stamps = map(_timestamp, map(_newest, columns[0].values()))
    # A replica's clock may run ahead of the controller's, so a report from the future counts as one of now.
    # A report without a finite time counts as none.
    return [
        (str(replica.unique_id), max(0.0, now - stamp), row)
        for replica, stamp, row in zip(replicas, stamps, values, strict=True)
        if isfinite(stamp)
    ]
