"""What the queue deletes: leftovers of killed runners, and what is old."""

import shutil
import time
from pathlib import Path

from sqlalchemy import select

from serve_app.batch.records import File, new_id
from serve_app.batch.tables import BATCHES, LINES
from tests.batch.stored import NOW, Stored, answered


def test_parts_of_another_database_are_kept(stored: Stored) -> None:
    stored.files.write("parts/batch_of-another-database/1", [b"1 {}\n"])

    stored.queue.discard_leftovers()

    assert stored.files.names("parts") == ["parts/batch_of-another-database/1"]


def test_parts_are_deleted_with_the_end_and_after_a_kill(stored: Stored) -> None:
    batch, other = stored.add(1), stored.add(1)
    for each in (batch, other):
        stored.queue.finish(each.id, [answered(stored.queue.lease(each.id, 1, NOW, 30)[0])])
    assert len(stored.files.names("parts")) == 2
    stored.queue.end(stored.batch(batch), NOW)
    assert len(stored.files.names("parts")) == 1

    stored.files.write(f"parts/{batch.id}/left-by-a-killed-runner", [b"1 {}\n"])
    stored.queue.discard_leftovers()

    (left,) = stored.files.names("parts")
    assert left.startswith(f"parts/{other.id}/")


def test_lines_of_ended_batches_are_deleted_after_a_kill(stored: Stored) -> None:
    batch, other = stored.add(3), stored.add(2)
    with stored.store.begin() as connection:
        connection.execute(BATCHES.update().where(BATCHES.c.id == batch.id).values(status="completed"))

    stored.queue.discard_leftovers()

    with stored.store.begin() as connection:
        assert set(connection.execute(select(LINES.c.batch_id)).scalars()) == {other.id}


def test_expired_and_interrupted_files_are_deleted(stored: Stored) -> None:
    now = int(NOW)
    made = [File(new_id("file"), "", "batch", "a", 1, now, now + each) for each in [60] * 101 + [90_000]]
    for file in made:
        stored.store.begin_file(file)
        stored.files.write(file.object, [b"x"])
    for file in made[1:]:
        stored.store.finish_file(file)

    assert stored.queue.delete_old(NOW + 60.0 - 3600.0) == 0
    stored.monotonic += 3600.0
    assert stored.queue.delete_old(NOW + 60.0) == 101
    assert stored.queue.delete_old(NOW + 60.0) == 0

    assert stored.files.names("files") == [made[-1].object]
    assert stored.store.files("", NOW) == [made[-1]]


def test_a_file_that_cannot_be_deleted_stops_no_other(tmp_path: Path) -> None:
    stored, now = Stored(tmp_path), int(NOW)
    stored.files.check(new=True)
    stuck, *others = [File(new_id("file"), "", "batch", "a", 1, now, now + 60) for _ in range(120)]
    for file in (stuck, *others):
        stored.store.begin_file(file)
        stored.store.finish_file(file)
    (tmp_path / "batch" / stuck.object / "x").mkdir(parents=True)

    stored.queue.delete_old(NOW + 60.0 - 3600.0)
    stored.monotonic += 3600.0
    assert stored.queue.delete_old(NOW + 60.0) == 119
    assert stored.queue.delete_old(NOW + 60.0) == 0
    shutil.rmtree(tmp_path / "batch" / stuck.object)
    assert stored.queue.delete_old(NOW + 60.0) == 1
    stored.store.close()


def test_clock_that_jumps_ahead_deletes_nothing_for_an_hour(stored: Stored) -> None:
    file = File(new_id("file"), "", "batch", "a", 1, int(NOW), int(NOW) + 90_000)
    stored.store.begin_file(file)
    stored.store.finish_file(file)
    stored.files.write(file.object, [b"x"])
    stored.queue.delete_old(NOW)
    stored.monotonic += 7200.0

    deleted = []
    for passed in (0.0, 3599.0, 1.0):
        stored.monotonic += passed
        deleted.append(stored.queue.delete_old(NOW + 100_000.0 + stored.monotonic))

    assert deleted == [0, 0, 1]


def test_files_are_kept_that_are_not_old_by_the_databases_clock(stored: Stored) -> None:
    began = int(time.time()) - 7200
    made = [File(new_id("file"), "", "batch", "a", 1, began, began + each) for each in (60, 90_000)]
    for file in made:
        stored.store.begin_file(file)
        stored.files.write(file.object, [b"x"])
        stored.store.finish_file(file)
    stored.queue.delete_old(began)
    stored.monotonic += 7200.0

    assert stored.queue.delete_old(began + 400 * 86_400.0) == 1

    assert stored.store.files("", began) == [made[1]]
