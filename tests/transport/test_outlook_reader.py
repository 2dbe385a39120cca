from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from serve_app.transport import outlook_reader
from serve_app.transport.outlook import UNKNOWN, Outlook
from serve_app.transport.outlook_reader import OutlookReader
from tests.stub_engine import LIMIT_S

STATUS = {
    "models": {
        "Engine-tide": {"ready": 0, "starting": 0, "pending": 1, "cold_start_s": 40.0, "phases_s": {}},
    }
}


class Store:
    """Ray's key-value store, as far as the outlook needs it."""

    def __init__(self) -> None:
        self.status: Any = STATUS
        self.fails: Exception | None = None
        self.reads = 0
        self.threads: set[threading.Thread] = set()

    def get_document(self, kind: str, app: str) -> Any:
        assert (kind, app) == ("status", "shop")
        return self.status

    def read_phases(self, app: str, deployment: str) -> dict[str, Any]:
        assert (app, deployment) == ("shop", "Engine-tide")
        self.reads += 1
        self.threads.add(threading.current_thread())
        if self.fails is not None:
            raise self.fails
        return {}

    async def next_read(self) -> None:
        """Wait until a reading that begins after this moment has been taken in.

        The next one may be under way; the one after it is taken in when a third begins.
        """
        enough = self.reads + 3
        async with asyncio.timeout(LIMIT_S):
            while self.reads < enough:
                await asyncio.sleep(0)


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(outlook_reader, "get_document", made.get_document)
    monkeypatch.setattr(outlook_reader, "read_phases", made.read_phases)
    monkeypatch.setattr(outlook_reader, "_INTERVAL_S", 0.0)
    return made


async def test_the_outlook_is_read_while_somebody_wants_it_and_off_the_event_loop(store: Store) -> None:
    reader = OutlookReader("shop", "Engine-tide")
    assert (reader.current, store.reads) == (UNKNOWN, 0)

    reader.start()
    await store.next_read()

    assert reader.current == Outlook("pending_capacity", 40.0)
    assert threading.main_thread() not in store.threads
    reader.stop()
    assert reader.current == UNKNOWN


async def test_once_nobody_wants_it_nothing_is_read(store: Store) -> None:
    reader = OutlookReader("shop", "Engine-tide")
    reader.start()
    await store.next_read()
    task = reader._task
    assert task is not None

    reader.stop()
    await asyncio.wait((task,))

    assert task.cancelled()
    reader.stop()  # which is nothing new


async def test_however_many_want_it_one_reads(store: Store) -> None:
    reader = OutlookReader("shop", "Engine-tide")
    before = asyncio.all_tasks()

    for _ in range(5):
        reader.start()

    assert len(asyncio.all_tasks() - before) == 1
    reader.stop()


async def test_a_store_that_fails_leaves_the_outlook_as_it_was_for_ten_seconds_and_is_asked_again(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    reader = OutlookReader("shop", "Engine-tide", lambda: now)
    reader.start()
    await store.next_read()

    with caplog.at_level(logging.WARNING, "ray.serve"):
        store.fails = ConnectionError("no GCS")
        await store.next_read()
        assert reader.current == Outlook("pending_capacity", 40.0)
        now = 10.5
        assert reader.current == UNKNOWN  # what it was, it may not be any more
        assert [record.message for record in caplog.records] == [
            "Engine-tide: its outlook cannot be read"
        ]  # and not once a second
        store.fails = None
        store.status = None
        await store.next_read()

    assert reader.current == UNKNOWN
    reader.stop()


@pytest.mark.parametrize("status", [None, {"models": {}}, {"policy_errors": 0}])
async def test_where_the_policy_has_said_nothing_yet_the_outlook_is_unknown(
    store: Store, status: Any
) -> None:
    store.status = status
    reader = OutlookReader("shop", "Engine-tide")

    reader.start()
    await store.next_read()

    assert reader.current == UNKNOWN
    reader.stop()
