"""Look whether the stores of files and batches can be used from this machine, without changing anything."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from serve_app.batch.file_store import STORE_ERRORS, FileStore
from serve_app.batch.tables import TABLES
from serve_app.database import TablesVersionError, connect

_NAME = "tideserve_check"


def check_database(url: str) -> str:
    """Return the state of the database in one sentence part: whether it can be written, and its version."""
    engine = connect(url, 1)
    try:
        if engine.dialect.name == "sqlite" and not Path(engine.url.database or "").exists():
            return _state_of_missing(Path(engine.url.database or "").parent)
        with engine.connect() as connection:
            exist = TABLES.exist(connection)
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.execute(text(f"CREATE TABLE {_NAME}_{uuid.uuid4().hex} (x INTEGER)"))
            connection.rollback()
        return f"writable, tables of version {TABLES.version}" if exist else "writable"
    except (SQLAlchemyError, TablesVersionError) as error:
        return _not_usable(error)
    finally:
        engine.dispose()


def check_files(url: str) -> str:
    """Return the state of the folder or object store in one sentence part: whether it can be written."""
    parts = urlsplit(url)
    folder = Path(unquote(parts.path))
    if parts.scheme == "file" and not folder.exists():
        return _state_of_missing(folder)
    files, name = FileStore(url), f"{_NAME}/{uuid.uuid4().hex}"
    try:
        files.write(name, [b"x"])
        if files.delete([name]):
            raise OSError("an object cannot be deleted")
    except STORE_ERRORS as error:
        return _not_usable(error)
    return "writable"


def _state_of_missing(folder: Path) -> str:
    present = next(each for each in (folder, *folder.parents) if each.exists())
    if os.access(present, os.W_OK | os.X_OK):
        return "will be made"
    return f"cannot be used from this machine: {present} is not writable"


def _not_usable(error: Exception) -> str:
    # Only the first line, which has no statement and no password.
    reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    return f"cannot be used from this machine: {reason[:300]}"
