import asyncio
import threading
from typing import Any

import pytest

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.ingress import cold_start_progress as progress
from serve_app.ingress.cold_start_progress import UNKNOWN, ColdStartProgress, ProgressReader, StoredState
from tests.stub_engine import LIMIT_S

MODEL: dict[str, Any] = {
    "ready": 0, "starting": 0, "pending": 1, "pending_s": 0, "reason": "",
    "cold_start_s": 40.0, "phases_s": {},
}  # fmt: skip


class Clock:
    """Stands in for `time`."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now


class Store:
    """Ray's key-value store, as far as the progress needs it."""

    def __init__(self) -> None:
        self.state = StoredState({"at": 1_700_000_000.0, "models": {"Engine-tide": MODEL}})
        self.fails: Exception | None = None
        self.reads = 0
        self.now = 0.0
        self.threads: set[threading.Thread] = set()
        self.stored = BoundedCall("stored state", self._read, -1.0, lambda: self.now)

    def _read(self) -> StoredState:
        self.reads += 1
        self.threads.add(threading.current_thread())
        if self.fails is not None:
            raise self.fails
        return self.state

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
    monkeypatch.setattr(progress, "_WAIT_S", LIMIT_S)
    monkeypatch.setattr(progress, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(progress, "time", Clock())
    return Store()


@pytest.fixture
def reader(store: Store) -> ProgressReader:
    return ProgressReader(store.stored, "Engine-tide")


async def test_the_progress_is_read_while_somebody_wants_it_and_off_the_event_loop(
    store: Store, reader: ProgressReader
) -> None:
    assert (reader.current, store.reads) == (UNKNOWN, 0)

    reader.start()
    await store.next_read()

    assert reader.current == ColdStartProgress("pending_capacity", 40.0)
    assert threading.main_thread() not in store.threads
    reader.stop()
    assert reader.current == UNKNOWN


async def test_once_nobody_wants_it_nothing_is_read(store: Store, reader: ProgressReader) -> None:
    reader.start()
    await store.next_read()
    task = reader._task

    reader.stop()

    assert task is not None
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_it_is_read_once_however_many_want_it(store: Store, reader: ProgressReader) -> None:
    before = asyncio.all_tasks()

    for _ in range(5):
        reader.start()

    assert len(asyncio.all_tasks() - before) == 1
    reader.stop()


async def test_a_store_that_fails_leaves_the_progress_as_it_was_for_ten_seconds_and_is_asked_again(
    store: Store, reader: ProgressReader
) -> None:
    reader.start()
    await store.next_read()

    store.fails = ConnectionError("no GCS")
    await store.next_read()
    assert reader.current == ColdStartProgress("pending_capacity", 40.0)
    store.now += 10.5
    assert reader.current == UNKNOWN  # what it was, it may not be any more

    store.fails = None
    store.state = StoredState()
    await store.next_read()
    assert reader.current == UNKNOWN
    reader.stop()


@pytest.mark.parametrize(
    "status",
    [None, {"at": 1_700_000_000.0, "models": {}}, {"at": 1_699_999_940.0, "models": {"Engine-tide": MODEL}}],
    ids=["no policy", "another model's", "a policy that is gone"],
)
async def test_where_the_policy_has_said_nothing_yet_the_progress_is_unknown(
    store: Store, reader: ProgressReader, status: Any
) -> None:
    store.state = StoredState(status)

    reader.start()
    await store.next_read()

    assert reader.current == UNKNOWN
    reader.stop()
