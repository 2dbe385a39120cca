"""The database of files and batches. Many processes use it at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Table, func, select

from serve_app.batch.records import DAY_S, OPEN, Batch, File, Line, LineError, Status
from serve_app.batch.tables import BATCHES, FILES, LINES, TABLES
from serve_app.database import connect, exclusive, insert_into
from serve_app.settings.storage import BatchSettings

CONNECTIONS = 4
"""The most connections of one process."""
MOST_BATCHES_PER_KEY = 100_000
"""The most batches of one owner, with those that have ended."""
_LOCK = 0x7469_6466
"""The number of the advisory lock for what is counted before it is added."""
_LINES_AT_ONCE = 500
"""A part of so many lines takes SQLite about 15 ms."""
_LONGEST_PAUSE_S = 0.1
UPLOAD_S = DAY_S
"""An upload that is not complete after this time has been interrupted."""


class LimitError(Exception):
    """A limit of an owner would be exceeded. The message names the setting, its value and the new number."""


class StatusError(Exception):
    """The file or batch is in a state that does not allow the change. The message says which."""


class BatchStore:
    """One process's access to the database. The tables are made with the first use.

    All methods block. They raise SQLAlchemyError if the database does not answer, OSError if SQLite's folder
    cannot be made, and TablesVersionError.

    Args:
        application: The name of the Ray Serve application. It sees only its own files and batches.
    """

    def __init__(self, url: str, limits: BatchSettings | None = None, application: str = "tideserve") -> None:
        self.limits = limits or BatchSettings()
        self._application = application
        self._engine = connect(url, CONNECTIONS)

    @contextmanager
    def begin(self, *, alone: bool = False) -> Iterator[Connection]:
        """Begin a transaction. Of all processes, one at a time is in a transaction that is `alone`."""
        TABLES.make(self._engine)
        with exclusive(self._engine, _LOCK) if alone else self._engine.begin() as connection:
            yield connection

    @contextmanager
    def begin_part(self) -> Iterator[Connection]:
        """Begin one of many transactions in a row. A pause of the same length lets other writers in."""
        began = time.perf_counter()
        with self.begin() as connection:
            yield connection
        time.sleep(min(time.perf_counter() - began, _LONGEST_PAUSE_S))

    def close(self) -> None:
        self._engine.dispose()

    # Files

    def begin_file(self, file: File, *, limited: bool = True) -> bool:
        """Add a file that is not stored yet. Return whether the application has no stored files.

        `file.bytes` is the most that it may become.

        Args:
            limited: Whether the owner's limits apply. They do not apply to results.

        Raises:
            LimitError: the owner has too many files, or too many bytes.
        """
        with self.begin(alone=True) as connection:
            if limited:
                self._check_files(connection, file)
            values = {**asdict(file), "application": self._application, "stored": False}
            connection.execute(FILES.insert().values(values))
            stored = select(FILES.c.id).where(self._mine(FILES), FILES.c.stored)
            return connection.execute(stored.limit(1)).first() is None

    def finish_file(self, file: File) -> None:
        """Make a file visible, once its object of `file.bytes` is stored."""
        values = {name: getattr(file, name) for name in ("filename", "bytes", "expires_at")}
        with self.begin() as connection:
            connection.execute(FILES.update().where(FILES.c.id == file.id).values(stored=True, **values))

    def file(self, file_id: str, owner: str | None, now: float) -> File | None:
        """Return a stored file that has not expired; with an `owner`, only a file of this owner."""
        query = select(*_FILE_COLUMNS).where(FILES.c.id == file_id, FILES.c.stored, _unexpired(now))
        query = query.where(self._mine(FILES, owner))
        with self.begin() as connection:
            row = connection.execute(query).first()
        return None if row is None else File(*row)

    def files(
        self,
        owner: str,
        now: float,
        *,
        after: str | None = None,
        limit: int = 10_000,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> list[File]:
        """Return the owner's files that come `after` an id, by the time of their creation."""
        query = select(*_FILE_COLUMNS).where(self._mine(FILES, owner), FILES.c.stored, _unexpired(now))
        if purpose is not None:
            query = query.where(FILES.c.purpose == purpose)
        if after is not None:
            query = query.where(FILES.c.id < after if order == "desc" else FILES.c.id > after)
        query = query.order_by(FILES.c.id.desc() if order == "desc" else FILES.c.id).limit(limit)
        with self.begin() as connection:
            return [File(*row) for row in connection.execute(query)]

    def hide_file(self, file_id: str) -> None:
        """Hide a file from clients. `forget_files` follows, once its object is deleted.

        Raises:
            StatusError: an open batch reads the file.
        """
        with self.begin(alone=True) as connection:
            reader = connection.execute(
                select(BATCHES.c.id).where(BATCHES.c.input_file_id == file_id, BATCHES.c.status.in_(OPEN))
            ).first()
            if reader is not None:
                raise StatusError(f"the batch {reader[0]} reads it; cancel the batch, or wait for its end")
            connection.execute(FILES.update().where(FILES.c.id == file_id).values(stored=False))

    def forget_files(self, file_ids: Sequence[str]) -> None:
        """Delete the rows of hidden files whose objects are deleted."""
        with self.begin() as connection:
            connection.execute(FILES.delete().where(FILES.c.id.in_(file_ids), ~FILES.c.stored))

    def expire(self, now: float, most: int = 100) -> list[File]:
        """Hide expired files, delete batches that ended long ago, and return hidden files of the past.

        The caller deletes the objects of the files, and calls `forget_files`.
        """
        in_use = select(BATCHES.c.input_file_id).where(BATCHES.c.status.in_(OPEN))
        kept_s = self.limits.retention_days * DAY_S
        with self.begin(alone=True) as connection:
            connection.execute(
                FILES.update().where(~_unexpired(now), FILES.c.id.not_in(in_use)).values(stored=False)
            )
            connection.execute(
                BATCHES.delete().where(
                    self._mine(BATCHES), _ended_at() < now - kept_s, BATCHES.c.status.not_in(OPEN)
                )
            )
            hidden = select(*_FILE_COLUMNS).where(
                ~FILES.c.stored, (FILES.c.created_at < now - UPLOAD_S) | ~_unexpired(now)
            )
            return [File(*row) for row in connection.execute(hidden.limit(most))]

    # Batches

    def add_batch(self, batch: Batch, now: float) -> None:
        """Add a batch.

        Raises:
            LimitError: the owner has too many batches or bytes.
            StatusError: its input file does not exist, or is not an input file.
        """
        with self.begin(alone=True) as connection:
            self._check_batches(connection, batch)
            purpose = connection.execute(
                select(FILES.c.purpose).where(
                    FILES.c.id == batch.input_file_id,
                    self._mine(FILES, batch.owner),
                    FILES.c.stored,
                    _unexpired(now),
                )
            ).scalar()
            if purpose is None:
                raise StatusError("no such file")
            if purpose != "batch":
                raise StatusError(f"its purpose is {purpose!r}, and must be 'batch'")
            connection.execute(BATCHES.insert().values(**asdict(batch), application=self._application))

    def batch(self, batch_id: str, owner: str | None = None) -> Batch | None:
        """Return a batch; with an `owner`, only a batch of this owner."""
        query = select(*_BATCH_COLUMNS).where(BATCHES.c.id == batch_id, self._mine(BATCHES, owner))
        with self.begin() as connection:
            row = connection.execute(query).first()
        return None if row is None else Batch(*row)

    def batches(self, owner: str, *, after: str | None = None, limit: int = 20) -> list[Batch]:
        """Return the owner's batches that come `after` an id, the newest first."""
        query = select(*_BATCH_COLUMNS).where(self._mine(BATCHES, owner))
        if after is not None:
            query = query.where(BATCHES.c.id < after)
        with self.begin() as connection:
            rows = connection.execute(query.order_by(BATCHES.c.id.desc()).limit(limit))
            return [Batch(*row) for row in rows]

    def open_batches(self) -> list[Batch]:
        """Return the application's batches of all owners that have not ended, the oldest first."""
        unended = BATCHES.c.status.in_(OPEN) & self._mine(BATCHES)
        with self.begin() as connection:
            rows = connection.execute(select(*_BATCH_COLUMNS).where(unended).order_by(BATCHES.c.id))
            return [Batch(*row) for row in rows]

    def ended(self, batch_ids: Sequence[str]) -> set[str]:
        """Return which of these batches have ended. Batches without a row are left out."""
        ended: set[str] = set()
        for first in range(0, len(batch_ids), _LINES_AT_ONCE):
            some = BATCHES.c.id.in_(batch_ids[first : first + _LINES_AT_ONCE])
            with self.begin() as connection:
                query = select(BATCHES.c.id).where(some, BATCHES.c.status.not_in(OPEN))
                ended.update(connection.execute(query).scalars())
        return ended

    def cancel(self, batch_id: str, now: float) -> bool:
        """Ask for the end of a batch. Return whether the batch was not yet ending."""
        with self.begin() as connection:
            return set_status(connection, batch_id, ("validating", "in_progress"), "cancelling", now)

    def start(self, batch_id: str, model: str, lines: Sequence[Line], now: float) -> bool:
        """Begin to work on a batch whose input file is valid. Return whether its status allowed it.

        The lines are added in parts, for the sake of other writers. After an interruption the batch is still
        `validating`. The next call keeps the lines that are there already.
        """
        insert = insert_into(self._engine)(LINES).on_conflict_do_nothing()
        new = {"batch_id": batch_id, "attempts": 0, "lease_until": 0.0}
        for first in range(0, len(lines), _LINES_AT_ONCE):
            rows = [new | asdict(line) for line in lines[first : first + _LINES_AT_ONCE]]
            with self.begin_part() as connection:
                if not _lock(connection, batch_id, "validating"):
                    return False
                connection.execute(insert, rows)
        with self.begin() as connection:
            values = {"model": model, "total": len(lines)}
            return set_status(connection, batch_id, ("validating",), "in_progress", now, **values)

    def fail(self, batch_id: str, errors: Sequence[LineError], now: float) -> bool:
        """End a batch whose input file is invalid. Return whether its status allowed it."""
        values = {"errors": [asdict(error) for error in errors]}
        with self.begin() as connection:
            failed = set_status(connection, batch_id, ("validating",), "failed", now, **values)
        if failed:  # an interrupted call of `start` may have added lines
            self.change_lines(LINES.delete(), LINES.c.batch_id == batch_id)
        return failed

    def change_lines(self, change: Any, lines: Any) -> None:
        """Update or delete many `lines`, for the sake of other writers not at once."""
        some = select(LINES.c.line).where(lines).limit(_LINES_AT_ONCE)
        changed = _LINES_AT_ONCE
        while changed:
            with self.begin_part() as connection:
                changed = connection.execute(change.where(lines, LINES.c.line.in_(some))).rowcount

    def _check_files(self, connection: Connection, file: File) -> None:
        count, size = self._used(connection, file.owner)
        _check_limit(count + 1, self.limits.max_files_per_key, "files", "max_files_per_key")
        _check_limit(size + file.bytes, self.limits.max_bytes_per_key, "bytes of files", "max_bytes_per_key")

    def _check_batches(self, connection: Connection, batch: Batch) -> None:
        limits = self.limits
        _, size = self._used(connection, batch.owner)
        owned = select(func.count()).where(self._mine(BATCHES, batch.owner))
        count = connection.execute(owned).scalar_one()
        opened = connection.execute(owned.where(BATCHES.c.status.in_(OPEN))).scalar_one()
        _check_limit(size, limits.max_bytes_per_key, "bytes of files", "max_bytes_per_key")
        _check_limit(count + 1, MOST_BATCHES_PER_KEY, "batches", "a fixed limit")
        _check_limit(opened + 1, limits.max_open_batches_per_key, "open batches", "max_open_batches_per_key")

    def _used(self, connection: Connection, owner: str) -> tuple[int, int]:
        """Return the number and the bytes of an owner's files, with those that are not stored yet."""
        sums = select(func.count(), func.coalesce(func.sum(FILES.c.bytes), 0))
        count, size = connection.execute(sums.where(self._mine(FILES, owner))).one()
        return int(count), int(size)

    def _mine(self, table: Table, owner: str | None = None) -> ColumnElement[bool]:
        """Return what chooses the rows of this application; with an `owner`, only those of this owner.

        Keys of two applications may have the same name, and belong to different people.
        """
        mine = table.c.application == self._application
        return mine if owner is None else mine & (table.c.owner == owner)


_FILE_COLUMNS = [FILES.c[name] for name in File.__dataclass_fields__]
_BATCH_COLUMNS = [BATCHES.c[name] for name in Batch.__dataclass_fields__]


def set_status(
    connection: Connection, batch_id: str, allowed: Sequence[Status], new: Status, now: float, **values: Any
) -> bool:
    """Give a batch a `new` status and other values if its status is `allowed`. Return whether it was."""
    values |= {"status": new, f"{new}_at": int(now)}
    changed = BATCHES.update().where(BATCHES.c.id == batch_id, BATCHES.c.status.in_(allowed)).values(values)
    return connection.execute(changed).rowcount == 1


def _lock(connection: Connection, batch_id: str, status: Status) -> bool:
    """Keep others from changing a batch during a transaction. Return whether its status is `status`."""
    same = BATCHES.update().where(BATCHES.c.id == batch_id, BATCHES.c.status == status).values(status=status)
    return connection.execute(same).rowcount == 1


def _check_limit(number: int, most: int, of: str, setting: str) -> None:
    if number > most:
        raise LimitError(f"there would be {number} {of} of this key; at most {most} are allowed ({setting})")


def _ended_at() -> Any:
    return func.coalesce(*(BATCHES.c[f"{status}_at"] for status in get_args(Status) if status not in OPEN))


def _unexpired(now: float) -> Any:
    return (FILES.c.expires_at.is_(None)) | (FILES.c.expires_at > int(now))
