import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from serve_app.ledger import writer as writing
from serve_app.ledger.store import Row, UsageStore
from serve_app.ledger.usage import Account, Amounts
from serve_app.ledger.writer import UsageWriter, merge_minutes
from tests.ledger.replica import FakeReplica

ALICE = Account("tide", "alice", "standard")
EVER = (0.0, 1e12)


class FaultyStore(UsageStore):
    """A real store in front of which a test can put faults."""

    away = False

    def add(self, writer: str, number: int, rows: Mapping[Row, Amounts]) -> None:
        if self.away:
            raise OperationalError("INSERT", {}, Exception("the server is away"))
        super().add(writer, number, rows)


class Writing:
    """A replica, its writer and its store."""

    def __init__(self, url: str) -> None:
        self.replica = FakeReplica()
        self.replica.serve()
        self.store = FaultyStore(url)
        self.counted: list[tuple[Mapping[Account, Amounts], float]] = []
        self.writer = UsageWriter(
            self.replica.meter,
            self.store,
            retention_days=1,
            count=lambda *counted: self.counted.append(counted),
            wall=lambda: self.replica.now,
        )

    def answer(self, requests: int = 1) -> None:
        """Serve requests, each in one step of a second."""
        for _ in range(requests):
            call = self.replica.begin(prompt=10)
            self.replica.step(1.0, prefill=10, first=call)
            self.replica.end(call)

    def stored(self) -> Amounts:
        return self.store.used("key", *EVER).get("alice", Amounts())


@pytest.fixture
def ledger(url: str) -> Iterator[Writing]:
    made = Writing(url)
    yield made
    made.store.close()


def test_usage_reaches_the_store_and_the_metrics(ledger: Writing) -> None:
    ledger.answer(3)

    ledger.writer.write()

    expected = Amounts(3, 30, 0, 3, pytest.approx(3.0))
    assert ledger.stored() == expected
    assert ledger.counted == [({ALICE: expected}, 0.0)]


def test_usage_waits_while_the_database_is_away(ledger: Writing, caplog: pytest.LogCaptureFixture) -> None:
    ledger.store.away = True
    with caplog.at_level(logging.WARNING, "ray.serve"):
        for _ in range(200):
            ledger.answer()
            ledger.writer.write()
        assert ledger.counted[-1][1] == ledger.writer.unwritten_s == pytest.approx(200.0)
        ledger.store.away = False
        ledger.writer.write()

    assert ledger.stored() == Amounts(200, 2000, 0, 200, pytest.approx(200.0))
    assert ledger.counted[-1][1] == ledger.writer.unwritten_s == 0.0
    assert [record.message for record in caplog.records] == [
        "ledger: usage waits in memory, because the database cannot be written: the server is away",
        "ledger: the database answers again, and has all usage",
    ]


def test_waiting_usage_is_bounded(ledger: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day without a database keeps two rows: of the write that failed, and of all minutes since."""
    monkeypatch.setattr(writing, "MOST_ROWS", 1)
    ledger.store.away = True
    for _ in range(100):
        ledger.answer()
        ledger.replica.now += 60.0
        ledger.writer.write()
    ledger.store.away = False
    ledger.writer.write()

    assert ledger.stored().requests == 100
    assert ledger.store.unused(*EVER)["idle"].gpu_seconds == pytest.approx(6000.0)


def test_merged_minutes_keep_their_sum() -> None:
    rows = {(minute, ALICE._replace(key=key)): Amounts(1) for minute in (0, 60, 120) for key in "ab"}

    merge_minutes(rows, most=4)

    assert rows == {
        (60, ALICE._replace(key="a")): Amounts(2),
        (60, ALICE._replace(key="b")): Amounts(2),
        (120, ALICE._replace(key="a")): Amounts(1),
        (120, ALICE._replace(key="b")): Amounts(1),
    }


def test_usage_older_than_its_retention_is_deleted(ledger: Writing) -> None:
    ledger.answer()
    ledger.writer.write()
    ledger.replica.now += 2 * 86_400
    ledger.writer.write()

    assert ledger.stored() == Amounts()


@pytest.mark.parametrize("days", [400, 4000])
def test_usage_is_kept_when_the_clock_jumps_ahead(ledger: Writing, days: int) -> None:
    ledger.answer()
    ledger.writer.write()
    ledger.replica.now += days * 86_400
    ledger.answer()
    ledger.writer.write()

    assert ledger.stored().requests == 2


def test_the_thread_writes_the_rest_when_it_is_closed(ledger: Writing) -> None:
    ledger.writer.start()
    ledger.answer(5)
    ledger.writer.close()

    assert ledger.stored().requests == 5


def test_a_full_disk_stops_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    ledger = Writing(f"sqlite:///{tmp_path}/file/usage.db")  # its folder cannot be made
    ledger.answer()

    ledger.writer.write()

    assert "the database cannot be written" in caplog.text
