"""Writes a replica's usage to the ledger once a second, from a thread. No request waits for it."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from serve_app.database import TablesVersionError
from serve_app.ledger.meter import UsageMeter
from serve_app.ledger.store import Row, UsageStore
from serve_app.ledger.usage import BUCKET_S, Account, Amounts

logger = logging.getLogger("ray.serve")

WRITE_INTERVAL_S = 1.0
MOST_ROWS = 50_000
"""The most rows that wait for the database, some 20 MB. Beyond them, minutes are merged."""
_LATE_S = 3.0
"""With usage older than this, the database counts as slow or away."""
_SHRINK_INTERVAL_S = 3600.0
_CLOSE_WAIT_S = 12.0
"""Longer than two statements wait for the database."""
_DAY_S = 86_400
_MINUTES_KEPT_S = 7 * _DAY_S
"""Older minutes are merged into hours."""


@dataclass(eq=False)
class UsageWriter:
    """Takes usage from a meter and adds it to a store, which may be away."""

    meter: UsageMeter
    store: UsageStore
    retention_days: float
    """Older usage is deleted."""
    count: Callable[[Mapping[Account, Amounts], float], None] = lambda *_: None
    """Gets the usage of each second, and how many seconds of usage are not in the store."""
    wall: Callable[[], float] = time.time
    """Unix time in seconds."""

    def __post_init__(self) -> None:
        self._name = uuid.uuid4().hex
        self._number = 0
        self._sending: dict[Row, Amounts] = {}
        """The rows of write `_number`. They stay the same until the store has them."""
        self._waiting: dict[Row, Amounts] = {}
        self._written_at = self.wall()
        self._shrunk_at = 0.0
        self._trouble = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    @property
    def unwritten_s(self) -> float:
        """How many seconds of usage are not in the store; 0 while it gets each second's."""
        age = self.wall() - self._written_at
        return age if self._trouble or age > _LATE_S else 0.0

    def start(self) -> None:
        """Write once a second, until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Write the rest. Takes 12 s at most, if the database is away."""
        self._stopping.set()
        self._thread.join(_CLOSE_WAIT_S)

    def write(self) -> None:
        """Take the usage since the last call, and try to write all that waits. Never raises."""
        try:
            usage = self.meter.take()
            now = self.wall()
            minute = int(now // BUCKET_S) * BUCKET_S
            for account, amounts in usage.items():
                self._waiting.setdefault((minute, account), Amounts()).add(amounts)
            self._send(now)
            if not self._trouble:
                self._written_at = now
            self.count(usage, now - self._written_at)
        except Exception:  # the thread must go on
            logger.exception("ledger: usage could not be counted")

    def _send(self, now: float) -> None:
        try:
            while self._sending or self._waiting:
                if not self._sending:
                    self._number += 1
                    self._sending, self._waiting = self._waiting, {}
                self.store.add(self._name, self._number, self._sending)
                self._sending = {}
            if not 0 <= now - self._shrunk_at <= _SHRINK_INTERVAL_S:
                self._shrunk_at = now
                confirmed = self.store.confirmed(now)
                self.store.shrink(confirmed - _MINUTES_KEPT_S, confirmed - self.retention_days * _DAY_S)
        except (SQLAlchemyError, OSError, TablesVersionError) as error:
            merge_minutes(self._waiting, MOST_ROWS)
            self._say(str(getattr(error, "orig", None) or error).strip())
            return
        if self._trouble:
            logger.warning("ledger: the database answers again, and has all usage")
        self._trouble = ""

    def _say(self, trouble: str) -> None:
        if not self._trouble:
            logger.error("ledger: usage waits in memory, because the database cannot be written: %s", trouble)
        self._trouble = trouble

    def _run(self) -> None:
        while not self._stopping.wait(WRITE_INTERVAL_S):
            self.write()
        self.write()
        if self._trouble:
            logger.error("ledger: the last %.0f s of usage are lost", self.wall() - self._written_at)


def merge_minutes(rows: dict[Row, Amounts], most: int) -> None:
    """Merge the oldest minute into the next one until there are at most `most` rows, if possible."""
    while len(rows) > most:
        oldest, *later = sorted({minute for minute, _ in rows})
        if not later:
            return
        for account in [account for minute, account in rows if minute == oldest]:
            rows.setdefault((later[0], account), Amounts()).add(rows.pop((oldest, account)))
