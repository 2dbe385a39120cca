"""The end of a batch: its answers are joined to result files, whatever comes between."""

import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError
from sqlalchemy import bindparam

from serve_app.batch.file_store import DamagedError
from serve_app.batch.records import LineError
from serve_app.batch.tables import BATCHES, LINES
from tests.batch.stored import NOW, Stored, answered


@pytest.mark.parametrize("cancelled", [False, True])
def test_lines_without_an_answer_are_in_the_error_file(stored: Stored, cancelled: bool) -> None:
    batch = stored.add(3)
    stored.queue.finish(batch.id, [answered(stored.queue.lease(batch.id, 1, NOW, 30)[0])])
    if cancelled:
        assert stored.store.cancel(batch.id, NOW)

    status = stored.queue.end(stored.batch(batch), NOW)

    output, errors = stored.results(batch)
    word = "cancelled" if cancelled else "expired"
    assert (status, stored.batch(batch).status) == (word, word)
    assert output.keys() == {"r1"}
    assert {name: line["error"]["code"] for name, line in errors.items()} == dict.fromkeys(
        ("r2", "r3"), f"batch_{word}"
    )
    assert all(line["response"] is None for line in errors.values())


def test_lines_of_one_position_all_have_a_result(stored: Stored) -> None:
    """A later version finds another order of sending, after an interrupted check had added some lines."""
    batch = stored.add(1_001)
    with stored.store.begin() as connection:
        connection.execute(LINES.update().values(position=0))

    stored.queue.end(batch, NOW)

    assert len(stored.results(batch)[1]) == 1_001


def test_a_batch_that_was_cancelled_meanwhile_does_not_complete(stored: Stored) -> None:
    before = stored.add(1)
    stored.store.cancel(before.id, NOW)

    assert stored.queue.end(before, NOW) is None
    assert stored.batch(before).status == "cancelling"


def test_a_batch_without_answers_has_no_output_file(stored: Stored) -> None:
    batch = stored.add(1)

    stored.queue.end(batch, NOW)

    found = stored.batch(batch)
    assert (found.output_file_id, found.error_file_id is None) == (None, False)


def test_answer_that_comes_during_the_join_does_not_count(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another runner has the last answer just when the error file is written."""
    batch = stored.add(1)
    line = stored.queue.lease(batch.id, 1, NOW, 30)[0]
    write = stored.files.write

    def answered_late(name: str, chunks: object) -> int:
        monkeypatch.setattr(stored.files, "write", write)
        assert stored.queue.finish(batch.id, [answered(line)]) == {}
        return write(name, chunks)  # type: ignore[arg-type]

    monkeypatch.setattr(stored.files, "write", answered_late)
    assert stored.queue.end(stored.batch(batch), NOW) == "expired"

    output, errors = stored.results(batch)
    assert (output.keys(), errors.keys()) == (set(), {"r1"})
    assert stored.batch(batch).completed == 0


FAULT = LineError("batch_failed", "A part is damaged.")


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "zeros"])
def test_each_line_of_a_damaged_part_has_an_error(stored: Stored, damage: str) -> None:
    batch = stored.add(3)
    for count in (2, 1):
        stored.queue.finish(batch.id, list(map(answered, stored.queue.lease(batch.id, count, NOW, 30))))
    parts = {name: stored.files.whole(name) for name in stored.files.names("parts")}
    (name, content) = next(part for part in parts.items() if part[1].count(b"\n") == 2)
    lost = {"missing": {"r1", "r2"}, "empty": {"r1", "r2"}}.get(damage, {"r2"})
    if damage == "missing":
        stored.files.delete([name])
    else:
        zeros = content[:-20] + bytes(18) + b"}\n"
        stored.files.write(name, [{"empty": b"", "cut": content[:-1], "zeros": zeros}[damage]])

    with pytest.raises(DamagedError, match=name):
        stored.queue.end(stored.batch(batch), NOW)
    assert stored.queue.end(stored.batch(batch), NOW, FAULT) == "failed"

    output, errors = stored.results(batch)
    assert (output.keys(), errors.keys()) == ({"r1", "r2", "r3"} - lost, lost)
    assert all(line["error"]["code"] == "answer_lost" for line in errors.values())
    assert all(name in line["error"]["message"] for line in errors.values())
    found = stored.batch(batch)
    assert (found.completed, found.failed, found.errors) == (3 - len(lost), len(lost), [asdict(FAULT)])


def test_one_failed_read_loses_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection to the object store breaks, while another part is lost indeed."""
    stored = Stored(tmp_path)
    batch = stored.add(2)
    for _ in range(2):
        stored.queue.finish(batch.id, list(map(answered, stored.queue.lease(batch.id, 1, NOW, 30))))
    missing, intact = stored.files.names("parts")
    stored.files.delete([missing])
    get, broken = obstore.get, [intact]

    def break_once(store: Any, name: str) -> Any:
        if name in broken:
            broken.remove(name)
            raise GenericError("connection reset")
        return get(store, name)

    monkeypatch.setattr(obstore, "get", break_once)
    assert stored.queue.end(batch, NOW, FAULT) == "failed"

    assert list(map(len, stored.results(batch))) == [1, 1]
    stored.store.close()


@pytest.mark.parametrize("lines", [1, 3], ids=["all answered", "some answered"])
def test_a_fault_outlives_a_kill_of_its_join(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    """The next runner knows of the fault, although it can read what is not lost."""
    batch = stored.add(lines)
    stored.queue.finish(batch.id, list(map(answered, stored.queue.lease(batch.id, 1, NOW, 30))))
    stored.files.delete(stored.files.names("parts"))

    def killed(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(stored.files, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        stored.queue.end(batch, NOW, FAULT)
    monkeypatch.undo()

    assert stored.queue.end(stored.batch(batch), NOW + 9) == "failed"
    assert stored.batch(batch).errors == [asdict(FAULT)]
    assert stored.batch(batch).finalizing_at == NOW


def test_a_fault_of_the_check_spares_a_batch_that_has_begun(stored: Stored) -> None:
    """Another runner's check of the input file was successful."""
    batch = stored.add(2)
    stored.queue.finish(batch.id, list(map(answered, stored.queue.lease(batch.id, 1, NOW, 30))))
    stale = replace(stored.batch(batch), status="validating", in_progress_at=None)

    assert stored.queue.end(stale, NOW, FAULT) is None

    assert stored.batch(batch).status == "in_progress"
    assert stored.queue.end(stored.batch(batch), NOW) == "expired"
    assert stored.results(batch)[0].keys() == {"r1"}


def test_a_damaged_part_does_not_keep_a_batch_from_its_cancellation(stored: Stored) -> None:
    batch = stored.add(2)
    stored.queue.finish(batch.id, list(map(answered, stored.queue.lease(batch.id, 1, NOW, 30))))
    stored.files.delete(stored.files.names("parts"))
    assert stored.store.cancel(batch.id, NOW)

    assert stored.queue.end(stored.batch(batch), NOW, FAULT) == "cancelled"

    _, errors = stored.results(batch)
    codes = {name: line["error"]["code"] for name, line in errors.items()}
    assert codes == {"r1": "answer_lost", "r2": "batch_cancelled"}


def test_a_join_of_many_parts_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads most parts once. The disk is full in the middle of the first attempt."""
    stored = Stored(tmp_path)
    batch = stored.add(1_200)
    rows = []
    for line in stored.queue.lease(batch.id, 1_000, NOW, 30) + stored.queue.lease(batch.id, 200, NOW, 30):
        part = f"parts/{batch.id}/{line.line}"
        (tmp_path / "batch" / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "batch" / part).write_bytes(
            b'%d {"custom_id":"%b"}\n' % (line.line, line.custom_id.encode())
        )
        rows.append({"number": line.line, "name": part})
    with stored.store.begin() as connection:
        answer = LINES.update().where(LINES.c.line == bindparam("number"))
        connection.execute(answer.values(outcome="completed", part=bindparam("name")), rows)
        connection.execute(BATCHES.update().values(completed=1_200))
    whole, write = stored.files.whole, stored.files.write
    reads: list[str] = []
    writes: list[str] = []

    def count(name: str) -> bytes:
        reads.append(name)
        return whole(name)

    def fill(name: str, chunks: object) -> int:
        if len(writes) == 20:
            raise OSError("no space left on device")
        writes.append(name)
        return write(name, chunks)  # type: ignore[arg-type]

    monkeypatch.setattr(stored.files, "whole", count)
    monkeypatch.setattr(stored.files, "write", fill)
    with pytest.raises(OSError, match="no space"):
        stored.queue.end(stored.batch(batch), NOW)
    before = set(reads)
    reads.clear()
    monkeypatch.setattr(stored.files, "write", write)

    assert stored.queue.end(stored.batch(batch), NOW) == "completed"

    assert len(stored.results(batch)[0]) == 1_200
    assert len(before & set(reads)) <= 32
    stored.store.close()


def test_a_join_of_large_parts_takes_little_memory(tmp_path: Path) -> None:
    """24 parts of 4 MB, of which two are read at once, each as a part and as its lines."""
    stored = Stored(tmp_path)
    batch = stored.add(24)
    text = b'"' + b"x" * (4 << 20) + b'"'
    for line in stored.queue.lease(batch.id, 24, NOW, 30):
        stored.queue.finish(batch.id, [answered(line, text=text)])
    tracemalloc.start()
    try:
        assert stored.queue.end(batch, NOW) == "completed"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 50 << 20
    output = stored.store.file(stored.batch(batch).output_file_id or "", None, NOW)
    assert output is not None
    assert output.bytes > 24 * len(text)
    stored.store.close()


def test_a_batch_cancelled_during_its_check_has_no_results(stored: Stored) -> None:
    """The runner was killed after the check had added some lines."""
    batch = stored.add(3)
    with stored.store.begin() as connection:
        connection.execute(BATCHES.update().values(status="validating", in_progress_at=None, total=0))
    assert stored.store.cancel(batch.id, NOW)

    assert stored.queue.end(stored.batch(batch), NOW) == "cancelled"

    assert stored.results(batch) == ({}, {})
