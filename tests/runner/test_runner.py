"""The runner over SQLite and a folder, with a fake of the ingress."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from serve_app.batch.file_store import DamagedError
from serve_app.batch.queue import Answered, LeasedLine
from serve_app.batch.records import OPEN, Batch, Line, LineError
from serve_app.batch.tables import LINES
from serve_app.runner.runner import LEASE_S
from serve_app.wire.batches import NO_BATCHES, BatchLine, LineAnswer
from tests.batch.stored import HOUR_S, NOW, body
from tests.runner.bench import LIMIT_S, Bench, ok, refused, until


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_each_line_has_its_own_answer(bench: Bench) -> None:
    batch = bench.stored.add(200)

    async with bench.running():
        done = await bench.until(batch, "completed")
        await until(lambda: bench.ended)

    output, errors = bench.stored.results(batch)
    assert {name: line["response"]["body"]["to"] for name, line in output.items()} == {
        f"r{number}": f"Line {number}" for number in range(1, 201)
    }
    assert errors == {}
    assert bench.ended == [batch.id]
    assert (done.completed, done.failed, bench.counted) == (200, 0, {"completed": 200})
    assert sorted(bench.ingress.numbers) == list(range(1, 201))


async def test_faults_of_lines_are_in_the_error_file(bench: Bench) -> None:
    bench.ingress.answer = lambda line: (
        ok(line) if line.number % 2 else LineAnswer(line.number, "r", 400, b'{"error":{"code":"bad"}}')
    )
    batch = bench.stored.add(4)

    async with bench.running():
        await bench.until(batch, "completed")

    output, errors = bench.stored.results(batch)
    assert (output.keys(), errors.keys()) == ({"r1", "r3"}, {"r2", "r4"})
    assert errors["r2"]["response"]["body"] == {"error": {"code": "bad"}}


async def test_refused_lines_come_again_after_the_wait(bench: Bench) -> None:
    batch = bench.stored.add(1)
    bench.ingress.answer = lambda line: refused(line, after_s=40.0)

    def lease_until() -> float:
        with bench.stored.store.begin() as connection:
            return float(connection.execute(select(LINES.c.lease_until)).scalar_one())

    async with bench.running():
        await until(lambda: lease_until() == NOW + 40.0)
        bench.ingress.answer = ok
        bench.now += 41.0
        await bench.until(batch, "completed")

    assert bench.ingress.numbers == [1, 1]


@pytest.mark.parametrize("loss", [ConnectionError("the replica is gone"), asyncio.CancelledError()])
async def test_lines_of_a_lost_ingress_replica_come_again(bench: Bench, loss: BaseException) -> None:
    batch = bench.stored.add(3)
    bench.ingress.lost_calls, bench.ingress.loss = 1, loss
    async with bench.running():
        await asyncio.wait_for(bench.ingress.called.wait(), LIMIT_S)
        bench.now += 60.0
        await bench.until(batch, "completed")

    assert bench.stored.results(batch)[0].keys() == {"r1", "r2", "r3"}


async def test_a_killed_runner_leaves_its_lines_to_the_next(bench: Bench) -> None:
    """Its lines in flight are sent again when their lease ends."""
    batch = bench.stored.add(20)
    bench.ingress.gate.clear()
    async with bench.running():
        await asyncio.wait_for(bench.ingress.called.wait(), LIMIT_S)
    in_flight = bench.ingress.numbers
    bench.ingress.gate.set()

    async with bench.running():
        await until(lambda: len(set(bench.ingress.numbers)) == 20)
        bench.now += LEASE_S
        await bench.until(batch, "completed")

    assert sorted(bench.ingress.numbers) == sorted([*range(1, 21), *in_flight])
    assert bench.stored.results(batch)[0].keys() == {f"r{number}" for number in range(1, 21)}


async def test_answers_after_those_of_another_runner_are_not_counted(bench: Bench) -> None:
    batch = bench.stored.add(2)
    bench.ingress.gate.clear()
    async with bench.running():
        await asyncio.wait_for(bench.ingress.called.wait(), LIMIT_S)
        line = LeasedLine(1, "r1", 0, 1, 1)
        await asyncio.to_thread(
            bench.stored.queue.finish, batch.id, [Answered(line, refused(BatchLine(1, b"")))]
        )
        bench.ingress.gate.set()
        await bench.until(batch, "completed")

    assert bench.counted == {"completed": 1}


async def test_the_end_of_the_window_ends_the_batch(bench: Bench) -> None:
    batch = bench.stored.add(3, hours=1)
    bench.ingress.answer = lambda line: ok(line) if line.number == 2 else refused(line)
    async with bench.running():
        await until(lambda: bench.counted, bench.wait)
        bench.now = NOW + HOUR_S
        await bench.until(batch, "expired")

    output, errors = bench.stored.results(batch)
    assert output.keys() == {"r2"}
    assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}


async def test_places_that_an_owner_leaves_go_to_others(bench: Bench) -> None:
    bench.ingress.wanted = 6
    bench.ingress.gate.clear()
    bench.stored.add(1, owner="a")
    bench.stored.add(100, owner="b")
    async with bench.running():
        await until(lambda: bench.ingress.open == 6)

    assert bench.ingress.open == 0  # the runner has closed its calls


@pytest.mark.parametrize(
    ("wanted", "large", "small"),
    [
        (10, {"lines": 400, "owner": "a"}, {"lines": 10, "owner": "b"}),
        (4, {"lines": 200, "hours": 24}, {"lines": 20, "hours": 1}),
    ],
    ids=["owners share", "the earliest end goes first"],
)
async def test_lines_in_flight_are_shared(
    bench: Bench, wanted: int, large: dict[str, Any], small: dict[str, Any]
) -> None:
    bench.ingress.wanted = wanted
    late, soon = bench.stored.add(**large), bench.stored.add(**small)
    async with bench.running():
        await bench.until(soon, "completed")
        left = await asyncio.to_thread(bench.stored.batch, late)

    assert left.status == "in_progress"


async def test_answers_wait_while_the_store_is_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk: nothing is lost, and no line is computed again."""
    batch = bench.stored.add(30)
    failures = []

    def full(*_: object) -> None:
        failures.append(1)
        raise OSError("No space left on device")

    monkeypatch.setattr(bench.stored.files, "write", full)
    async with bench.running():
        await until(lambda: len(failures) >= 3, bench.wait)
        monkeypatch.undo()
        await bench.until(batch, "completed")

    assert sorted(bench.ingress.numbers) == list(range(1, 31))
    assert "No space left on device" in caplog.text
    assert caplog.text.count("No space left") == 1


async def test_leases_of_a_clock_that_was_days_ahead_do_not_count(bench: Bench) -> None:
    batch = bench.stored.add(3)
    bench.stored.queue.lease(batch.id, 3, NOW + 5 * 86_400, LEASE_S)

    async with bench.running():
        await bench.until(batch, "completed")


async def test_a_cancelled_call_to_the_store_ends_no_runner(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = bench.stored.add(3)
    failed = threading.Event()

    def cancelled(*_: object) -> None:
        failed.set()
        raise asyncio.CancelledError

    monkeypatch.setattr(bench.stored.store, "open_batches", cancelled)
    async with bench.running():
        await until(failed.is_set)
        monkeypatch.undo()
        await bench.until(batch, "completed")


async def test_a_batch_without_its_input_fails_and_stops_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    broken, good = bench.stored.add(3, hours=23), bench.stored.add(3)
    bench.stored.files.delete([name := f"files/{broken.input_file_id}"])
    async with bench.running():
        await bench.until(good, "completed")
        await until(lambda: bench.stored.batch(broken).status == "failed", lambda: bench.wait(LEASE_S))

    assert name in bench.reason(broken)
    _, errors = bench.stored.results(broken)
    assert {line["error"]["code"] for line in errors.values()} == {"batch_failed"}
    assert len(errors) == 3
    assert "their store cannot be used" not in caplog.text


async def test_batches_wait_for_a_share_that_is_not_mounted(bench: Bench, tmp_path: Path) -> None:
    """Its mount point is an empty folder. An answer that comes meanwhile is kept in memory."""
    mounted, away = tmp_path / "batch", tmp_path / "share"
    batch = bench.stored.add(1)
    bench.ingress.gate.clear()
    runner = bench.runner()
    await runner.turn()
    await bench.ingress.called.wait()
    joined = bench.stored.add(1)
    bench.answer(joined)
    mounted.rename(away)
    mounted.mkdir()
    bench.ingress.gate.set()
    for _ in range(20):
        await runner.turn()
        await asyncio.sleep(0.02)
        bench.wait(60)
    assert list(mounted.iterdir()) == []
    mounted.rmdir()
    away.rename(mounted)
    async with bench.running():
        for each in (joined, batch):
            await until(lambda b=each: bench.stored.batch(b).status == "completed", bench.wait)  # type: ignore[misc]

    assert bench.stored.results(batch)[0].keys() == {"r1"}


async def test_answers_may_be_nested_deeply(bench: Bench) -> None:
    batch = bench.stored.add(1)
    nested = b'{"tools":' + b"[" * 2000 + b"]" * 2000 + b"}"
    bench.ingress.answer = lambda line: LineAnswer(line.number, "r", 200, nested)
    async with bench.running():
        await until(lambda: bench.stored.batch(batch).status == "completed", bench.wait)


async def test_answers_that_cannot_be_written_do_not_keep_a_batch_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = bench.stored.add(2)

    def unwritable(*_: object) -> int:
        raise ValueError("of the answer itself")

    monkeypatch.setattr(bench.stored.queue, "finish", unwritable)
    async with bench.running():
        await until(lambda: bench.stored.batch(batch).status == "failed", bench.wait)

    _, errors = bench.stored.results(batch)
    assert {name: line["error"]["code"] for name, line in errors.items()} == dict.fromkeys(
        ("r1", "r2"), "batch_failed"
    )


async def test_damaged_parts_end_their_batches_alone(bench: Bench) -> None:
    """More of them than there are places for a join."""
    damaged = [bench.stored.add(2) for _ in range(3)]
    for batch in damaged:
        bench.answer(batch)
    parts = bench.stored.files.names("parts")
    for part in parts:
        bench.stored.files.write(part, [b""])
    good = bench.stored.add(3)
    async with bench.running():
        await bench.until(good, "completed")
        for batch in damaged:
            await until(lambda b=batch: bench.stored.batch(b).status == "failed", bench.wait)  # type: ignore[misc]

    assert sorted(part for batch in damaged for part in parts if part in bench.reason(batch)) == parts
    for batch in damaged:
        output, errors = bench.stored.results(batch)
        assert (output, errors.keys()) == ({}, {"r1", "r2"})


@pytest.mark.parametrize("status", ["cancelled", "failed"])
async def test_a_batch_whose_check_fails_ends(bench: Bench, status: str) -> None:
    """Whether a client cancels it or not."""
    batch = bench.stored.add(1)
    bench.unvalidate()
    name = f"files/{batch.input_file_id}"
    bench.stored.files.write(name, [b""])
    bench.validate = lambda each: bench.validated.append(bench.stored.files.read(name, 0, 9).decode())
    async with bench.running():
        if status == "cancelled":
            await asyncio.to_thread(bench.stored.store.cancel, batch.id, bench.now)
        await until(lambda: bench.stored.batch(batch).status == status, bench.wait)

    assert bench.stored.results(batch) == ({}, {})
    assert status == "cancelled" or name in bench.reason(batch)


async def test_a_failed_check_spares_a_batch_that_has_begun(bench: Bench) -> None:
    """Another runner could read the input file, and began just as this one gave it up."""
    batch = bench.stored.add(1)
    bench.unvalidate()

    def check(batch: Batch) -> None:
        bench.validated.append(batch.id)
        if len(bench.validated) == 6:
            bench.stored.store.start(batch.id, "tide", [Line(1, "r1", 0, 1)], bench.now)
        raise DamagedError("the object cannot be read")

    bench.validate = check
    async with bench.running():
        await until(lambda: bench.stored.batch(batch).status not in OPEN, bench.wait)

    assert bench.stored.batch(batch).status == "completed"


@pytest.mark.parametrize(("padding", "counted"), [(0, 70), (1 << 20, 32_768 * 8)])
async def test_backlog_says_what_is_left(bench: Bench, padding: int, counted: int) -> None:
    def line(number: int, model: str) -> dict[str, Any]:
        return {**body(number, model), **({"unread": "x" * padding} if padding else {})}

    batch = bench.stored.add(30, hours=2, line=line)
    bench.ingress.gate.clear()
    async with bench.running() as runner:
        await until(lambda: runner.backlogs().get("tide", NO_BATCHES).body_bytes, bench.wait)
        left = runner.backlogs()["tide"]

    assert (left.batches, left.lines, left.late) == (1, 30, 0)
    assert left.due == ((30, batch.expires_at),)
    assert left.body_bytes == pytest.approx(30 * counted, rel=0.1)


async def test_checks_of_one_owner_delay_no_other(bench: Bench) -> None:
    many = [bench.stored.add(1, owner="a") for _ in range(5)]
    mine, running = bench.stored.add(1, owner="b"), bench.stored.add(20, owner="c")
    bench.unvalidate(but="c")
    go = threading.Event()

    def check(batch: Batch) -> None:
        bench.validated.append(batch.id)
        assert go.wait(LIMIT_S)

    bench.validate = check
    async with bench.running():
        try:
            await until(lambda: bench.stored.batch(running).completed == 20, bench.wait)
            begun = list(bench.validated)
        finally:
            go.set()

    assert begun == [many[0].id, mine.id]


async def test_a_third_owner_waits_for_one_check_of_others(bench: Bench) -> None:
    owners = ["a"] * 4 + ["b"] * 4 + ["c"]
    batches = {bench.stored.add(1, owner=owner).id: owner for owner in owners}
    bench.unvalidate()

    def refuse(batch: Batch) -> None:
        bench.validated.append(batch.id)
        bench.stored.store.fail(batch.id, [LineError("empty_file", "It is empty.")], bench.now)

    bench.validate = refuse
    async with bench.running():
        await until(lambda: len(bench.validated) >= 9)

    assert sorted(batches[each] for each in bench.validated[:3]) == ["a", "b", "c"]


async def test_a_file_is_checked_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check ends just when a turn has read the batch as it was before."""
    batch = bench.stored.add(1)
    bench.unvalidate()
    read, begun, checked = bench.stored.store.open_batches, threading.Event(), threading.Event()

    def stale() -> list[Batch]:
        found = read()
        if bench.validated and not checked.is_set():
            begun.set()
            assert checked.wait(LIMIT_S)
        return found

    def check(batch: Batch) -> None:
        bench.validated.append(batch.id)
        assert begun.wait(LIMIT_S)
        bench.stored.store.start(batch.id, "tide", [Line(1, "r1", 0, 1)], bench.now)
        checked.set()

    monkeypatch.setattr(bench.stored.store, "open_batches", stale)
    bench.validate = check
    async with bench.running():
        await until(lambda: bench.stored.batch(batch).status == "completed", bench.wait)

    assert bench.validated == [batch.id]
