"""The ledger's database: SQLite in a file by default, or Postgres, through SQLAlchemy Core.

Processes write increments, many at the same time. A process numbers its writes, and the number is stored with
the increments in one transaction. So a write that is repeated after an unclear commit counts once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    func,
    inspect,
    literal,
    select,
)
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateIndex, CreateTable

from serve_app.database import WAIT_S, connect, earlier_time, exclusive, insert_into, make_folder
from serve_app.ledger.usage import AMOUNTS, QUERIES, UNUSED, Account, Amounts
from serve_app.settings.keys_file import OTHER_KEYS

Row = tuple[int, Account]
"""The begin of a minute in Unix time, and who used something in it."""
By = Literal["key", "lane", "model"]

SCHEMA_VERSION = 2
"""A release that changes the tables raises it, and converts the tables of the last version in `_prepare`."""
_LOOK_STEPS = 10_000
"""SQLite looks at the clock after so many instructions of its virtual machine, which take about 0.1 ms."""
_LOCK = 0x7469_6465
"""The number of the advisory lock for making and shrinking tables."""
_HOUR_S = 3600
_DAY_S = 86_400

_TABLES = MetaData()
_VERSION = Table("ledger_version", _TABLES, Column("version", Integer, primary_key=True))
_WRITERS = Table(
    "ledger_writers",
    _TABLES,
    Column("writer", String, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("minute", BigInteger, nullable=False),
)
"""The last write of each process."""


def _usage_table(name: str, tables: MetaData, *payer: str) -> Table:
    kinds = {"gpu_seconds": Double, "cost": Double}
    return Table(
        name,
        tables,
        Column("minute", BigInteger, primary_key=True),
        *(Column(each, String, primary_key=True) for each in payer),
        *(Column(each, kinds.get(each, BigInteger), nullable=False) for each in AMOUNTS),
    )


_PAYER = ("application", *Account._fields)
"""Keys of two applications may have the same name, and belong to different people."""
_USAGE = _usage_table("ledger_amounts", _TABLES, *_PAYER)
_OF_KEY = Index("ledger_amounts_of_key", _USAGE.c.application, _USAGE.c.key, _USAGE.c.minute)
"""A key's own usage takes no scan of all keys' rows."""
_USAGE_1 = _usage_table("ledger_usage", MetaData(), *Account._fields)
"""The usage of all applications in version 1. Replicas of that release may still write to it."""


class LedgerVersionError(Exception):
    """A newer release has changed the tables. This one must not write to them."""


class UsageStore:
    """One process's access to the database. The tables are made with the first use.

    All methods raise SQLAlchemyError if the database does not answer, OSError if SQLite's folder cannot be
    made, and LedgerVersionError.

    Args:
        url: The URL of the database.
        application: The name of the Ray Serve application. It sees only its own usage.
    """

    def __init__(self, url: str, application: str = "tideserve") -> None:
        self._application = application
        self._mine = _USAGE.c.application == application
        self._engine = connect(url, QUERIES)
        self._insert = insert_into(self._engine)
        self._lock = threading.Lock()
        self._ready = False

    def add(self, writer: str, number: int, rows: Mapping[Row, Amounts]) -> None:
        """Add the amounts of `rows`, unless `writer` has stored a write with this or a later number."""
        self._prepare()
        new = {"writer": writer, "number": number, "minute": max(minute for minute, _ in rows)}
        with self._engine.begin() as connection:
            insert = self._insert(_WRITERS).values(new)
            numbered = insert.on_conflict_do_update(
                index_elements=[_WRITERS.c.writer],
                set_={name: insert.excluded[name] for name in ("number", "minute")},
                where=_WRITERS.c.number < insert.excluded.number,
            )
            if connection.execute(numbered.returning(_WRITERS.c.number)).first() is not None:
                self._add(connection, rows)

    def _add(self, connection: Connection, rows: Mapping[Row, Amounts]) -> None:
        # In order, so that two processes never wait for each other's rows.
        connection.execute(
            self._adding(self._insert(_USAGE)),
            [
                {"minute": minute, "application": self._application, **account._asdict(), **asdict(amounts)}
                for (minute, account), amounts in sorted(rows.items(), key=lambda row: row[0])
            ],
        )

    @staticmethod
    def _adding(insert: Any) -> Any:
        """Return an insertion that adds to the rows that are there already."""
        return insert.on_conflict_do_update(
            index_elements=_USAGE.primary_key,
            set_={name: _USAGE.c[name] + insert.excluded[name] for name in AMOUNTS},
        )

    def used(
        self, by: By, since: float, until: float, key: str | None = None, most: int = 1000
    ) -> dict[str, Amounts]:
        """Return the use in the minutes that begin in [`since`, `until`), by key, lane or model.

        The largest by GPU-seconds come first. The names beyond `most` are summed as `other`.

        Args:
            by: What to sum by.
            since: Unix time.
            until: Unix time.
            key: Only the use of this key; None for all.
            most: The most names.
        """
        chosen = _USAGE.c.state == "used"
        if key is not None:
            chosen &= _USAGE.c.key == key
        found = self._sums(_USAGE.c[by], chosen, since, until)
        names = sorted(found, key=lambda name: found[name].gpu_seconds, reverse=True)
        sums = {name: found[name] for name in names[:most]}
        for name in names[most:]:
            sums.setdefault(OTHER_KEYS, Amounts()).add(found[name])
        return sums

    def unused(self, since: float, until: float) -> dict[str, Amounts]:
        """Return the GPU time of all models that no request used, by state."""
        return self._sums(_USAGE.c.state, _USAGE.c.state.in_(UNUSED), since, until)

    def shrink(self, merge_before: float, delete_before: float) -> None:
        """Merge minutes before a Unix time into hours, and delete all before another.

        A thousand keys that are always busy then take 24,000 rows a day instead of 1.4 million.
        """
        self._prepare()
        minute = _USAGE.c.minute
        merged = (minute < merge_before) & (minute % _HOUR_S != 0)
        payer = [_USAGE.c[name] for name in _PAYER]
        sums = [func.sum(_USAGE.c[name]) for name in AMOUNTS]
        hour = minute - minute % _HOUR_S
        hours = select(hour, *payer, *sums).where(merged).group_by(hour, *payer)
        insert = self._insert(_USAGE).from_select([column.name for column in _USAGE.columns], hours)
        # Two processes would add the same minutes to an hour.
        with exclusive(self._engine, _LOCK) as connection:
            self._convert(connection)
            connection.execute(self._adding(insert))
            connection.execute(_USAGE.delete().where(merged))
            connection.execute(_USAGE.delete().where(self._mine, minute < delete_before))
            connection.execute(_WRITERS.delete().where(_WRITERS.c.minute < delete_before))

    def _convert(self, connection: Connection) -> None:
        """Move usage that a release without applications has written. It becomes this application's.

        Called again and again, because replicas of that release write until they have drained.
        """
        if not inspect(connection).has_table(_USAGE_1.name):
            return
        if connection.dialect.name == "postgresql":  # a ledger of years takes longer than a statement may
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql(f"LOCK TABLE {_USAGE_1.name} IN EXCLUSIVE MODE")
        columns = [column.name for column in _USAGE_1.columns]
        # SQLite takes `ON` for a join's without a condition before it.
        old = select(literal(self._application), *_USAGE_1.columns).where(_USAGE_1.c.minute >= 0)
        insert = self._insert(_USAGE).from_select(["application", *columns], old)
        connection.execute(self._adding(insert))
        connection.execute(_USAGE_1.delete())

    def confirmed(self, now: float) -> float:
        """Return `now` or the database's time, whichever is earlier, if usage confirms it; else 0.

        A clock may be set years ahead. It is confirmed once there is usage of the last 31 days that is older
        than a day.
        """
        self._prepare()
        minute = _USAGE.c.minute
        with self._engine.connect() as connection:
            now = earlier_time(connection, now)
            recent = select(minute).where(minute >= now - 31 * _DAY_S, minute < now - _DAY_S).limit(1)
            return 0.0 if connection.execute(recent).first() is None else now

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _sums(self, name: Any, chosen: Any, since: float, until: float) -> dict[str, Amounts]:
        self._prepare()
        sums = [func.sum(_USAGE.c[each]).label(each) for each in AMOUNTS]
        query = (
            select(name, *sums)
            .where(self._mine, chosen, _USAGE.c.minute >= since, _USAGE.c.minute < until)
            .group_by(name)
        )
        with self._engine.connect() as connection, _bounded_query(connection):
            # Postgres sums integers as decimals.
            return {
                row[0]: Amounts(*(int(value) for value in row[1:-2]), *(float(value) for value in row[-2:]))
                for row in connection.execute(query)
            }

    def _prepare(self) -> None:
        """Make the tables if they are missing, and check their version, once."""
        with self._lock:
            if self._ready:
                return
            make_folder(self._engine)
            # `IF NOT EXISTS` fails if another process makes the same table at the same time.
            with exclusive(self._engine, _LOCK) as connection:
                for table in _TABLES.sorted_tables:
                    connection.execute(CreateTable(table, if_not_exists=True))
                connection.execute(CreateIndex(_OF_KEY, if_not_exists=True))
                connection.execute(
                    self._insert(_VERSION).values(version=SCHEMA_VERSION).on_conflict_do_nothing()
                )
                newest = connection.execute(select(func.max(_VERSION.c.version))).scalar_one()
                if newest == SCHEMA_VERSION:
                    self._convert(connection)
            if newest > SCHEMA_VERSION:
                raise LedgerVersionError(
                    f"its tables have version {newest}; this release knows versions up to {SCHEMA_VERSION}"
                )
            self._ready = True


@contextmanager
def _bounded_query(connection: Connection) -> Iterator[None]:
    """Abort a query of SQLite that takes too long. Postgres does so itself (`statement_timeout`)."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.driver_connection
    deadline = time.monotonic() + WAIT_S
    driver.set_progress_handler(lambda: time.monotonic() >= deadline, _LOOK_STEPS)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)
