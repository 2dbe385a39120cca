"""Reports of ingress replicas with queued requests, through Ray's key-value store.

Ray gives the policy only the reports of running replicas. A draining ingress replica may still have queued
requests, for which the policy must start engine replicas. So an ingress replica stores its report while it
has a queued request, and the policy reads the reports that Ray leaves out.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from serve_app.wire.documents import erase, read_all, write

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True)
class IngressReport:
    """One replica's report: its Unix time, and its values by their names on the wire."""

    at: float
    values: Mapping[str, float]
    waiting: tuple[str, ...] = ()
    """The `traceparent` of some queued requests, for links in traces."""


_decoder = msgspec.json.Decoder(IngressReport)


def publish_report(
    app: str, replica: str, values: Mapping[str, float], at: float, waiting: Sequence[str] = ()
) -> None:
    """Store the report of an ingress replica, made at Unix time `at`."""
    write(_prefix(app) + replica, msgspec.json.encode(IngressReport(at, values, tuple(waiting))))


async def keep_report(
    app: str,
    replica: str,
    has_queued: Callable[[], bool],
    report: Callable[[], Mapping[str, float]],
    waiting: Callable[[], Sequence[str]] = tuple,
    interval_s: float = 0.5,
) -> None:
    """Store the `report`, and the traces that are `waiting`, every `interval_s` while `has_queued()`.

    After that it removes the report. It never returns.
    """
    written = failing = False
    while True:
        try:
            if has_queued():
                values = report()  # not in the thread: it reads objects of the event loop
                written = True
                await asyncio.to_thread(publish_report, app, replica, values, time.time(), waiting())
            elif written:
                await asyncio.to_thread(forget_report, app, replica)
                written = False
            failing = False
        except Exception:
            # The GCS does not answer. The requests stay queued.
            if not failing:
                logger.warning("the report of queued requests cannot be written", exc_info=True)
            failing = True
        await asyncio.sleep(interval_s)


def forget_report(app: str, replica: str) -> None:
    """Remove the report of a replica without queued requests."""
    erase(_prefix(app) + replica)


def read_reports(app: str) -> dict[str, IngressReport]:
    """Return the reports by replica, without those that another version wrote."""
    return read_all(_prefix(app), _decoder.decode)


def _prefix(app: str) -> str:
    return f"ingress/{app}/"
