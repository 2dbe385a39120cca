import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from serve_app import database


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Return a connection that has the lock of a new file, as one has that changes it to WAL."""
    with closing(sqlite3.connect(tmp_path / "new.db")) as made:
        made.execute("BEGIN IMMEDIATE")
        yield made


def test_connection_to_a_new_file_waits_for_another_that_has_its_lock(
    tmp_path: Path, holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: holder.commit())

    with database.connect(f"sqlite:///{tmp_path}/new.db", 1).connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"


@pytest.mark.usefixtures("holder")
def test_connection_to_a_new_file_waits_no_longer_than_a_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = [0.0]
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: sum(slept))

    with pytest.raises(OperationalError, match="locked"):
        database.connect(f"sqlite:///{tmp_path}/new.db", 1).connect()

    assert sum(slept) == pytest.approx(database.WAIT_S, abs=0.02)
