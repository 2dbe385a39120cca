"""The ledger's database: SQLite in a file by default, or Postgres, through SQLAlchemy Core.

Processes write increments, many at the same time. A process numbers its writes, and the number is stored with
the increments in one transaction. So a write that is repeated after an unclear commit counts once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from sqlalchemy import BigInteger, Column, Double, Index, MetaData, String, Table, func, select
from sqlalchemy.engine import Connection

from serve_app.database import WAIT_S, Tables, connect, earlier_time, exclusive, insert_into
from serve_app.ledger.budgets import COSTS, KEPT_S, cost_rows
from serve_app.ledger.budgets import TABLES as BUDGETS
from serve_app.ledger.usage import AMOUNTS, QUERIES, UNUSED, Account, Amounts, By
from serve_app.settings.keys_file import OTHER_KEYS

Row = tuple[int, Account]
"""The begin of a minute in Unix time, and who used something in it."""

_LOOK_STEPS = 10_000
"""SQLite looks at the clock after so many instructions of its virtual machine, which take about 0.1 ms."""
_LOCK = 0x7469_6468
"""The number of the advisory lock for shrinking tables."""
_HOUR_S = 3600
_DAY_S = 86_400

_TABLES = Tables("ledger", 1, MetaData())
_WRITERS = Table(
    "ledger_writers",
    _TABLES.tables,
    Column("writer", String, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("minute", BigInteger, nullable=False),
)
"""The last write of each process."""


_ACCOUNT = ("model", "key", "lane", "state")
_PAYER = ("application", *_ACCOUNT)
"""Keys of two applications may have the same name, and belong to different people."""
_KINDS = {"gpu_seconds": Double, "cost": Double}
_USAGE = Table(
    "ledger_amounts",
    _TABLES.tables,
    Column("minute", BigInteger, primary_key=True),
    *(Column(name, String, primary_key=True) for name in _PAYER),
    *(Column(name, _KINDS.get(name, BigInteger), nullable=False) for name in AMOUNTS),
    # A key's own usage takes no scan of all keys' rows.
    Index("ledger_amounts_of_key", "application", "key", "minute"),
)


class UsageStore:
    """One process's access to the database. The tables are made with the first use.

    All methods raise SQLAlchemyError if the database does not answer, OSError if SQLite's folder cannot be
    made, and TablesVersionError.

    Args:
        application: The name of the Ray Serve application. It sees only its own usage.
    """

    def __init__(self, url: str, application: str = "tideserve") -> None:
        self._application = application
        self._mine = _USAGE.c.application == application
        self._engine = connect(url, QUERIES)
        self._insert = insert_into(self._engine)

    def add(self, writer: str, number: int, rows: Mapping[Row, Amounts]) -> None:
        """Add the amounts of `rows`, unless `writer` has stored a write with this or a later number."""
        _TABLES.make(self._engine)
        costs = cost_rows(self._application, rows)
        if costs:
            BUDGETS.make(self._engine)
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
                if costs:
                    insert = self._insert(COSTS)
                    added = {"cost": COSTS.c.cost + insert.excluded.cost}
                    key = COSTS.primary_key
                    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=added), costs)

    def _add(self, connection: Connection, rows: Mapping[Row, Amounts]) -> None:
        # In order, so that two processes never wait for each other's rows.
        connection.execute(
            self._adding(self._insert(_USAGE)),
            [
                {"minute": minute, "application": self._application, **asdict(amounts)}
                | {name: getattr(account, name) for name in _ACCOUNT}
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
        """Return the use in the minutes that begin in [`since`, `until`), by key, lane, model or variant.

        The largest by GPU-seconds come first. The names beyond `most` are summed as `other`. With `key`, only
        its use counts. Times are Unix time.
        """
        chosen = _USAGE.c.state == "used"
        if key is not None:
            chosen &= _USAGE.c.key == key
        found: dict[str, Amounts] = {}
        column = _USAGE.c["model" if by == "variant" else by]
        for name, amounts in self._sums(column, chosen, since, until).items():
            found.setdefault(name.partition(" ")[0] if by == "model" else name, Amounts()).add(amounts)
        names = sorted(found, key=lambda name: found[name].gpu_seconds, reverse=True)
        sums = {name: found[name] for name in names[:most]}
        for name in names[most:]:
            sums.setdefault(OTHER_KEYS, Amounts()).add(found[name])
        return sums

    def unused(self, since: float, until: float) -> dict[str, Amounts]:
        """Return the GPU time of all models that no request used, by state."""
        return self._sums(_USAGE.c.state, _USAGE.c.state.in_(UNUSED), since, until)

    def prices(self, since: float) -> dict[tuple[str, str], float]:
        """Return the money for a computed token, by model and lane: of the dearest ten minutes."""
        _TABLES.make(self._engine)
        minute, computed = _USAGE.c.minute, _USAGE.c.prompt_tokens - _USAGE.c.cached_tokens
        group = (_USAGE.c.model, _USAGE.c.lane, minute - minute % 600)
        sums = func.sum(_USAGE.c.cost), func.sum(computed + _USAGE.c.completion_tokens)
        query = select(*group, *sums).where(self._mine, _USAGE.c.state == "used", minute >= since)
        found: dict[tuple[str, str], float] = {}
        with self._engine.connect() as connection, _bounded_query(connection):
            for name, lane, _, cost, tokens in connection.execute(query.group_by(*group)):
                if tokens > 0:
                    of = name.partition(" ")[0], lane  # the dearest variant's
                    found[of] = max(found.get(of, 0.0), float(cost) / float(tokens))
        return found

    def shrink(self, merge_before: float, delete_before: float) -> None:
        """Merge minutes before a Unix time into hours, and delete all before another.

        A thousand keys that are always busy then take 24,000 rows a day instead of 1.4 million.
        """
        _TABLES.make(self._engine)
        minute = _USAGE.c.minute
        merged = (minute < merge_before) & (minute % _HOUR_S != 0)
        payer = [_USAGE.c[name] for name in _PAYER]
        sums = [func.sum(_USAGE.c[name]) for name in AMOUNTS]
        hour = minute - minute % _HOUR_S
        hours = select(hour, *payer, *sums).where(merged).group_by(hour, *payer)
        insert = self._insert(_USAGE).from_select([column.name for column in _USAGE.columns], hours)
        # Two processes would add the same minutes to an hour.
        with exclusive(self._engine, _LOCK) as connection:
            connection.execute(self._adding(insert))
            connection.execute(_USAGE.delete().where(merged))
            connection.execute(_USAGE.delete().where(self._mine, minute < delete_before))
            connection.execute(_WRITERS.delete().where(_WRITERS.c.minute < delete_before))
            if BUDGETS.exist(connection):
                old = COSTS.c.quarter < merge_before - KEPT_S
                connection.execute(COSTS.delete().where(COSTS.c.application == self._application, old))

    def confirmed(self, now: float) -> float:
        """Return `now` or the database's time, whichever is earlier, if usage confirms it; else 0.

        A clock may be set years ahead. It is confirmed once there is usage of the last 31 days that is older
        than a day.
        """
        _TABLES.make(self._engine)
        minute = _USAGE.c.minute
        with self._engine.connect() as connection:
            now = earlier_time(connection, now)
            recent = select(minute).where(minute >= now - 31 * _DAY_S, minute < now - _DAY_S).limit(1)
            return 0.0 if connection.execute(recent).first() is None else now

    def close(self) -> None:
        self._engine.dispose()

    def _sums(self, name: Any, chosen: Any, since: float, until: float) -> dict[str, Amounts]:
        _TABLES.make(self._engine)
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
