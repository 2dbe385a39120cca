"""What ingress replicas that hold requests report through Ray's key-value store.

Ray hands the policy the reports of running replicas only. An ingress replica that drains goes on holding its
requests, which wait for engine replicas that nobody would ask for: so a replica writes its report down for as
long as it holds any, and the policy reads those of replicas that Ray no longer tells it of.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ray.experimental import internal_kv

from serve_app.wire.documents import NAMESPACE

logger = logging.getLogger("ray.serve")

_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class IngressReport:
    """One replica's report: when it was made, in Unix time, and its values by their names on the wire."""

    at: float
    values: Mapping[str, float]


def publish_report(app: str, replica: str, values: Mapping[str, float], at: float) -> None:
    """Store the report of an ingress replica, made at Unix time `at`. A call to Ray's GCS, about 0.5 ms."""
    document = json.dumps({"at": at, "values": dict(values)}, separators=(",", ":")).encode()
    internal_kv._internal_kv_put(_prefix(app) + replica, document, overwrite=True, namespace=NAMESPACE)


async def keep_report(
    app: str, replica: str, holds: Callable[[], bool], report: Callable[[], Mapping[str, float]]
) -> None:
    """Have what `report` says stored, twice a second, while `holds`; removed when that is over. For ever."""
    written = failing = False
    while True:
        try:
            if holds():
                values = report()  # here: what it reads belongs to the event loop
                written = True
                await asyncio.to_thread(publish_report, app, replica, values, time.time())
            elif written:
                await asyncio.to_thread(forget_report, app, replica)
                written = False
            failing = False
        except Exception:
            # The GCS is away; what is held must not suffer for it.
            if not failing:
                logger.warning("the report of held requests cannot be written", exc_info=True)
            failing = True
        await asyncio.sleep(_INTERVAL_S)


def forget_report(app: str, replica: str) -> None:
    """Remove it: the replica holds nothing any more."""
    internal_kv._internal_kv_del(_prefix(app) + replica, namespace=NAMESPACE)


def read_reports(app: str) -> dict[str, IngressReport]:
    """Those there are, by replica. What is not a report is left out: another version may have written it."""
    reports = {}
    for key in internal_kv._internal_kv_list(_prefix(app), namespace=NAMESPACE):
        document = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
        report = _parsed(document) if document is not None else None
        if report is not None:
            reports[key.decode().removeprefix(_prefix(app))] = report
    return reports


def _parsed(document: bytes) -> IngressReport | None:
    try:
        found: Any = json.loads(document)
        values = {str(name): float(value) for name, value in found["values"].items()}
        at = float(found["at"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return IngressReport(at, values) if isfinite(at) else None


def _prefix(app: str) -> str:
    return f"ingress/{app}/"
