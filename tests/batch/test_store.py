"""One contract for all databases."""

import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import sqlalchemy

from serve_app.batch.records import Batch, File, Line, LineError, new_id
from serve_app.batch.store import BatchStore, LimitError, StatusError
from serve_app.batch.tables import BATCHES, LINES
from serve_app.database import TablesVersionError
from serve_app.ledger.store import UsageStore
from serve_app.settings.storage import BatchSettings

NOW = 1_800_000_000
LINES_OF_FILE = [Line(number, f"r{number}", 0, 1, number) for number in range(1, 2502)]
KILLED_CHECK = """
import os, signal, sys
from serve_app.batch.records import Line
from serve_app.batch.store import BatchStore

class KilledAfterTheFirstPart(list):
    def __getitem__(self, key):
        if key.start:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(key)

lines = [Line(number, f"r{number}", 0, 1, number) for number in range(1, 2502)]
BatchStore(sys.argv[1]).start(sys.argv[2], "tide", KilledAfterTheFirstPart(lines), 1_800_000_000)
"""
"""A process that is killed between two parts of the lines of a batch."""
LIMITS = BatchSettings(max_files_per_key=3, max_bytes_per_key=1024, max_open_batches_per_key=2)


def make_file(store: BatchStore, owner: str = "alice", size: int = 10, expires_at: int | None = None) -> File:
    file = File(new_id("file"), owner, "batch", "in.jsonl", size, NOW, expires_at)
    store.begin_file(file)
    store.finish_file(file)
    return file


def make_batch(store: BatchStore, file: File, now: int = NOW) -> Batch:
    batch = Batch(
        new_id("batch"), file.owner, "/v1/completions", file.id, "24h", "validating", now, now + 86_400
    )
    store.add_batch(batch, now)
    return batch


class TestStore:
    @pytest.fixture
    def store(self, url: str) -> Iterator[BatchStore]:
        store = BatchStore(url, LIMITS)
        yield store
        store.close()

    def test_file_is_seen_only_once_it_is_stored(self, store: BatchStore) -> None:
        file = File(new_id("file"), "alice", "batch", "", 100, NOW)
        store.begin_file(file)

        assert store.file(file.id, "alice", NOW) is None
        assert store.files("alice", NOW) == []

        stored = replace(file, filename="in.jsonl", bytes=7, expires_at=NOW + 60)
        store.finish_file(stored)

        assert store.file(file.id, "alice", NOW) == stored
        assert store.files("alice", NOW) == [stored]

    def test_file_of_another_owner_is_not_seen(self, store: BatchStore) -> None:
        file = make_file(store)

        assert store.file(file.id, "bob", NOW) is None
        assert store.file(file.id, None, NOW) == file
        assert store.files("bob", NOW) == []

    def test_files_are_paged_in_both_orders(self, store: BatchStore) -> None:
        files = sorted((make_file(store) for _ in range(3)), key=lambda file: file.id)

        assert store.files("alice", NOW, limit=2) == [files[2], files[1]]
        assert store.files("alice", NOW, after=files[1].id) == [files[0]]
        assert store.files("alice", NOW, order="asc", after=files[0].id) == files[1:]
        assert store.files("alice", NOW, purpose="batch_output") == []

    def test_too_many_files_are_refused(self, store: BatchStore) -> None:
        for _ in range(3):
            make_file(store)

        with pytest.raises(LimitError, match=r"4 files of this key; at most 3 .*max_files_per_key"):
            make_file(store)
        make_file(store, "bob")

    def test_too_many_bytes_are_refused(self, store: BatchStore) -> None:
        make_file(store, size=1000)

        with pytest.raises(LimitError, match=r"1025 bytes of files of this key; at most 1024"):
            make_file(store, size=25)

    def test_uploads_at_the_same_time_stay_within_the_limit(self, url: str) -> None:
        stores = [BatchStore(url, LIMITS) for _ in range(4)]
        refused: list[LimitError] = []

        def upload(store: BatchStore) -> None:
            for _ in range(2):
                try:
                    make_file(store)
                except LimitError as error:
                    refused.append(error)

        threads = [threading.Thread(target=upload, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(stores[0].files("alice", NOW)) == 3
        assert len(refused) == 5
        for store in stores:
            store.close()

    def test_batch_is_read_back(self, store: BatchStore) -> None:
        file = make_file(store)
        batch = replace(make_batch(store, file), id=new_id("batch"), metadata={"k": "ü"})
        store.add_batch(batch, NOW)

        assert store.batch(batch.id) == batch
        assert store.batch(batch.id, "bob") is None

    def test_batch_needs_an_input_file_of_its_owner(self, store: BatchStore) -> None:
        file = make_file(store, expires_at=NOW + 60)
        result = File(new_id("file"), "alice", "batch_output", "out.jsonl", 1, NOW)
        store.begin_file(result, limited=False)
        store.finish_file(result)

        with pytest.raises(StatusError, match="no such file"):
            make_batch(store, replace(file, owner="bob"))
        with pytest.raises(StatusError, match="no such file"):
            make_batch(store, file, NOW + 60)
        with pytest.raises(StatusError, match="purpose is 'batch_output'"):
            make_batch(store, result)

    def test_too_many_open_batches_are_refused(self, store: BatchStore) -> None:
        file = make_file(store)
        first, _ = make_batch(store, file), make_batch(store, file)

        with pytest.raises(LimitError, match="3 open batches of this key; at most 2"):
            make_batch(store, file)
        store.fail(first.id, [LineError("empty_file", "It is empty.")], NOW)
        make_batch(store, file)

    def test_start_adds_the_lines_once(self, store: BatchStore) -> None:
        batch = make_batch(store, make_file(store))

        assert store.start(batch.id, "tide", LINES_OF_FILE, NOW + 1)
        assert not store.start(batch.id, "tide", LINES_OF_FILE, NOW + 2)

        started = store.batch(batch.id)
        assert started is not None
        assert (started.status, started.model, started.total) == ("in_progress", "tide", 2501)
        assert started.in_progress_at == NOW + 1
        assert self.lines(store) == [line.line for line in LINES_OF_FILE]

    def test_lines_are_whole_after_a_kill_between_two_parts(self, store: BatchStore, url: str) -> None:
        batch = make_batch(store, make_file(store))

        killed = subprocess.run([sys.executable, "-c", KILLED_CHECK, url, batch.id], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert 0 < len(self.lines(store)) < 2501
        assert [each.status for each in store.open_batches()] == ["validating"]
        assert store.start(batch.id, "tide", LINES_OF_FILE, NOW + 1)

        assert self.lines(store) == [line.line for line in LINES_OF_FILE]
        started = store.batch(batch.id)
        assert started is not None
        assert (started.status, started.total) == ("in_progress", 2501)

    def test_cancelling_ends_the_adding_of_lines(self, store: BatchStore) -> None:
        batch = make_batch(store, make_file(store))

        class CancelledAfterTheFirstPart(list[Line]):
            def __getitem__(self, key: Any) -> Any:
                if key.start:
                    store.cancel(batch.id, NOW)
                return super().__getitem__(key)

        assert not store.start(batch.id, "tide", CancelledAfterTheFirstPart(LINES_OF_FILE), NOW)

        assert 0 < len(self.lines(store)) < 2501
        assert [each.status for each in store.open_batches()] == ["cancelling"]

    def test_failed_batch_keeps_no_lines(self, store: BatchStore) -> None:
        batch = make_batch(store, make_file(store))
        store.start(batch.id, "tide", LINES_OF_FILE[:3], NOW)
        with store.begin() as connection:
            connection.execute(BATCHES.update().values(status="validating"))

        assert store.fail(batch.id, [LineError("invalid_input_file", "It is deleted.")], NOW)

        assert self.lines(store) == []

    def test_lines_of_a_failed_batch_are_deleted_in_parts(self, store: BatchStore) -> None:
        """Other writers would wait for 50,000 lines."""
        batch = make_batch(store, make_file(store))
        store.start(batch.id, "tide", LINES_OF_FILE, NOW)
        with store.begin() as connection:
            connection.execute(BATCHES.update().values(status="validating"))
        deleted: list[int] = []

        def note(_connection: object, cursor: Any, statement: str, *_: object) -> None:
            if statement.startswith("DELETE"):
                deleted.append(cursor.rowcount)

        sqlalchemy.event.listen(sqlalchemy.Engine, "after_cursor_execute", note)
        try:
            store.fail(batch.id, [], NOW)
        finally:
            sqlalchemy.event.remove(sqlalchemy.Engine, "after_cursor_execute", note)

        assert sum(deleted) == len(LINES_OF_FILE)
        assert max(deleted) <= 500

    @staticmethod
    def lines(store: BatchStore) -> list[int]:
        with store.begin() as connection:
            return list(connection.execute(sqlalchemy.select(LINES.c.line).order_by(LINES.c.line)).scalars())

    def test_failed_batch_has_its_errors(self, store: BatchStore) -> None:
        batch = make_batch(store, make_file(store))

        store.fail(batch.id, [LineError("invalid_json_line", "Not JSON.", line=2)], NOW + 1)

        failed = store.batch(batch.id)
        assert failed is not None
        error = {"code": "invalid_json_line", "message": "Not JSON.", "param": None, "line": 2}
        assert failed.document()["errors"] == {"object": "list", "data": [error]}
        assert (failed.status, failed.failed_at) == ("failed", NOW + 1)
        assert store.open_batches() == []

    def test_only_an_open_batch_is_cancelled(self, store: BatchStore) -> None:
        file = make_file(store)
        batch, failed = make_batch(store, file), make_batch(store, file)
        store.fail(failed.id, [], NOW)

        assert store.cancel(batch.id, NOW + 1)
        assert not store.cancel(batch.id, NOW + 2)
        assert not store.cancel(failed.id, NOW + 2)
        assert [each.id for each in store.open_batches()] == [batch.id]
        assert not store.start(batch.id, "tide", [], NOW + 3)

    def test_file_of_an_open_batch_is_not_deleted(self, store: BatchStore) -> None:
        file = make_file(store)
        batch = make_batch(store, file)

        with pytest.raises(StatusError, match=batch.id):
            store.hide_file(file.id)
        store.fail(batch.id, [], NOW)
        store.hide_file(file.id)

        assert store.file(file.id, "alice", NOW) is None

    def test_what_is_old_is_deleted_unless_a_batch_needs_it(self, store: BatchStore) -> None:
        expired, used = (make_file(store, expires_at=NOW + 10) for _ in range(2))
        interrupted = File(new_id("file"), "alice", "batch", "", 1, NOW)
        store.begin_file(interrupted)
        batch = make_batch(store, used)

        assert [file.id for file in store.expire(NOW + 10)] == [expired.id]
        store.forget_files([expired.id])
        assert [file.id for file in store.expire(NOW + 86_401)] == [interrupted.id]
        store.fail(batch.id, [], NOW)
        store.forget_files([interrupted.id])
        assert [file.id for file in store.expire(NOW + 31 * 86_400)] == [used.id]
        assert store.batch(batch.id) is None

    def test_batch_is_kept_from_its_end_on(self, store: BatchStore) -> None:
        batch = make_batch(store, make_file(store))
        store.fail(batch.id, [], NOW + 6 * 86_400)

        store.expire(NOW + 31 * 86_400)

        assert store.batch(batch.id) is not None

    def test_application_sees_only_its_own_files_and_batches(self, store: BatchStore, url: str) -> None:
        file = make_file(store)
        batch = make_batch(store, file)
        other = BatchStore(url, LIMITS, "other")

        assert (store.open_batches(), other.open_batches()) == ([batch], [])
        assert (store.batches("alice"), other.batches("alice")) == ([batch], [])
        assert (store.batch(batch.id), other.batch(batch.id), other.batch(batch.id, "alice")) == (
            batch,
            None,
            None,
        )
        assert (store.files("alice", NOW), other.files("alice", NOW)) == ([file], [])
        assert (other.file(file.id, "alice", NOW), other.file(file.id, None, NOW)) == (None, None)
        with pytest.raises(StatusError, match="no such file"):
            make_batch(other, file)
        other.close()

    def test_each_application_has_its_own_limits(self, store: BatchStore, url: str) -> None:
        file = make_file(store, size=1000)
        make_batch(store, file)
        make_batch(store, file)
        other = BatchStore(url, LIMITS, "other")

        make_batch(other, make_file(other, size=1000))

        assert len(other.batches("alice")) == 1
        other.close()

    def test_retention_of_an_application_spares_batches_of_others(self, store: BatchStore, url: str) -> None:
        batch = make_batch(store, make_file(store))
        store.fail(batch.id, [], NOW)
        other = BatchStore(url, BatchSettings(retention_days=1), "other")

        other.expire(NOW + 2 * 86_400)

        assert store.batch(batch.id) is not None
        other.close()

    def test_page_of_ten_thousand_batches_takes_little_time(self, url: str) -> None:
        store = BatchStore(url, BatchSettings(max_open_batches_per_key=100_000))
        batch = make_batch(store, make_file(store))
        with store.begin() as connection:
            row = dict(connection.execute(BATCHES.select()).one()._mapping)
            rows = [{**row, "id": new_id("batch")} for _ in range(9_999)]
            for first in range(0, len(rows), 500):
                connection.execute(BATCHES.insert(), rows[first : first + 500])

        ids = sorted((batch.id, *(row["id"] for row in rows)), reverse=True)
        with store.begin() as connection:
            plan = store_plan(connection, "alice", ids[5000])
        found = store.batches("alice", after=ids[5000], limit=100)
        store.close()

        assert [each.id for each in found] == ids[5001:5101]
        assert "index" in plan
        assert "sort" not in plan
        assert "b-tree" not in plan  # as SQLite calls it

    def test_tables_of_another_version_are_refused(self, store: BatchStore, url: str) -> None:
        with store.begin() as connection:
            connection.execute(sqlalchemy.text("UPDATE tideserve_tables SET version = 99"))

        other = BatchStore(url)

        refusal = "its tables of the batches have version 99, and this release needs version 1: run a release"
        with pytest.raises(TablesVersionError, match=refusal):
            other.open_batches()
        other.close()

    def test_batches_and_ledger_share_a_database(self, store: BatchStore, url: str) -> None:
        ledger = UsageStore(url)

        assert ledger.used("key", 0, 3600) == {}
        assert store.open_batches() == []
        ledger.close()

    def test_an_error_does_not_show_what_a_client_sent(self, store: BatchStore) -> None:
        """Postgres repeats the row that it refuses, in the detail of the error."""
        file = File(new_id("file"), "alice", cast("str", None), "my secret.jsonl", 1, NOW)

        with pytest.raises(sqlalchemy.exc.IntegrityError) as raised:
            store.begin_file(file, limited=False)

        shown = "".join(traceback.format_exception(raised.value))
        assert "INSERT INTO batch_files" in shown
        assert "purpose" in shown
        assert "secret" not in shown

    def test_processes_that_start_at_the_same_time_make_the_tables_once(self, url: str) -> None:
        stores = [BatchStore(url) for _ in range(4)]
        found: list[list[Batch]] = []
        threads = [
            threading.Thread(target=lambda s=store: found.append(s.open_batches())) for store in stores
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for store in stores:
            store.close()

        assert found == [[], [], [], []]


def store_plan(connection: sqlalchemy.Connection, owner: str, after: str) -> str:
    """The database's plan for a page of batches."""
    prefix = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
    query = f"{prefix} SELECT * FROM batches WHERE owner = :o AND id < :i ORDER BY id DESC LIMIT 100"
    if prefix == "EXPLAIN":
        connection.execute(sqlalchemy.text("ANALYZE batches"))
    return str(connection.execute(sqlalchemy.text(query), {"o": owner, "i": after}).all()).lower()


def test_ids_sort_by_the_time_of_creation() -> None:
    first = new_id("batch")
    deadline = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= deadline:
        pass

    assert first < new_id("batch")
