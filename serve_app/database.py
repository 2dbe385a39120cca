"""Connections to a database by URL: SQLite in a file, or Postgres by psycopg, through SQLAlchemy Core."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    ExceptionContext,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    inspect,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url

WAIT_S = 5
"""How long a statement waits for a lock or for the network, and how long a query may take."""

_COMMON: dict[str, Any] = {"pool_timeout": WAIT_S, "hide_parameters": True}
"""Errors are logged, and parameters hold names of files and metadata of clients."""
_LOCK = 0x7469_6465
"""The number of the advisory lock for making tables."""
_VERSIONS = Table(
    "tideserve_tables",
    MetaData(),
    Column("name", String, primary_key=True),
    Column("version", Integer, nullable=False),
)


class TablesVersionError(Exception):
    """A release with other tables has made them. This one must not use them."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables that are made together, and their version. A release that changes the tables raises it."""

    name: str
    version: int
    tables: MetaData
    _made: WeakSet[Engine] = field(default_factory=WeakSet, init=False, repr=False, compare=False)

    def make(self, engine: Engine) -> None:
        """Make the tables in a database that lacks them. Later calls with the same `engine` do nothing.

        Raises:
            OSError: SQLite's folder cannot be made.
            TablesVersionError: the tables are of another version.
        """
        if engine in self._made:
            return
        if engine.dialect.name == "sqlite":
            Path(engine.url.database or "").parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Of two processes that make the same table at the same time, one would fail.
        with exclusive(engine, _LOCK) as connection:
            if not self.exist(connection):
                _VERSIONS.create(connection, checkfirst=True)
                self.tables.create_all(connection, checkfirst=False)
                connection.execute(_VERSIONS.insert().values(name=self.name, version=self.version))
        self._made.add(engine)

    def exist(self, connection: Connection) -> bool:
        """Return whether the database has the tables. Raises TablesVersionError."""
        if not inspect(connection).has_table(_VERSIONS.name):
            return False
        of_these = select(_VERSIONS.c.version).where(_VERSIONS.c.name == self.name)
        found = connection.execute(of_these).scalar_one_or_none()
        if found is not None and found != self.version:
            raise TablesVersionError(
                f"its tables of the {self.name} have version {found}, and this release needs version "
                f"{self.version}: run a release with version {found}, or name another database"
            )
        return found is not None


def connect(url: str, pool_size: int) -> Engine:
    """Return the engine of a database, which connects with the first use.

    Args:
        url: The URL, as `settings.storage` accepts it.
        pool_size: The most connections to Postgres at the same time.
    """
    address = make_url(url)
    if address.drivername.startswith("postgres"):
        limits = {
            "connect_timeout": WAIT_S,
            "tcp_user_timeout": WAIT_S * 1000,
            "options": f"-c statement_timeout={WAIT_S * 1000} -c lock_timeout={WAIT_S * 1000}",
            "application_name": "tideserve",
        }
        address = address.set(drivername="postgresql+psycopg")
        engine = create_engine(address, connect_args=limits, pool_size=pool_size, max_overflow=0, **_COMMON)
        event.listen(engine, "handle_error", _hide_detail)
        return engine
    engine = create_engine(address, connect_args={"timeout": WAIT_S}, **_COMMON)

    @event.listens_for(engine, "connect")
    def _use_wal(connection: Any, _: Any) -> None:
        # Of two connections that change a new file to WAL, SQLite refuses one at once, whatever its time-out.
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() >= deadline:
                    raise
                time.sleep(0.01)
        # Without a sync, a commit survives the loss of a process. The loss of power may undo the last ones.
        connection.execute("PRAGMA synchronous=NORMAL")

    return engine


def _hide_detail(context: ExceptionContext) -> None:
    """Keep the first line of an error of Postgres. The lines after it may repeat a row."""
    if getattr(context.original_exception, "sqlstate", None):
        for error in (context.original_exception, context.sqlalchemy_exception):
            if error is not None:
                error.args = (str(error.args[0]).partition("\n")[0], *error.args[1:])


def insert_into(engine: Engine) -> Any:
    """Return the dialect's function `insert`, which has `on_conflict_do_update`."""
    return postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert


def earlier_time(connection: Connection, now: float) -> float:
    """Return `now` or the database's time, whichever is earlier, in Unix seconds."""
    return min(now, database_time(connection))


def database_time(connection: Connection) -> float:
    """Return the database's time, in Unix seconds."""
    postgres = connection.dialect.name == "postgresql"
    clock = func.extract("epoch", func.now()) if postgres else func.strftime("%s", "now")
    return float(connection.execute(select(clock)).scalar_one())


@contextmanager
def exclusive(engine: Engine, number: int) -> Iterator[Connection]:
    """Begin a transaction. Of all processes, one at a time is in the transactions of a `number`."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(number)))
        else:  # one writer at any time, which SQLite would otherwise choose only at the first change
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection
