import asyncio
import threading
from typing import Any

import pytest

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.ingress import cold_start_progress
from serve_app.ingress.cold_start_progress import UNKNOWN, ProgressReader, StoredState
from serve_app.ingress.cold_start_progress import ColdStartProgress as Progress
from serve_app.ingress.cold_start_progress import cold_start_progress as progress
from tests.stub_engine import LIMIT_S

NOW = 1_700_000_000.0
PHASES_S = {"process": 2.0, "imports": 10.0, "weights_and_kv_cache": 20.0, "warm_up": 3.0}
COLD_START_S = 35.0


def status(**more: Any) -> dict[str, Any]:
    document = {"ready": 0, "starting": 0, "pending": 0, "cold_start_s": COLD_START_S, "phases_s": PHASES_S}
    return {**document, **more}


def unmeasured(**more: Any) -> dict[str, Any]:
    return status(cold_start_s=None, phases_s={}, **more)


def phase(name: str, ago_s: float) -> dict[str, Any]:
    return {"phase": name, "since": NOW - ago_s, "durations_s": {}}


@pytest.mark.parametrize(
    ("name", "ago_s", "eta_s"),
    [
        ("imports", 0.0, 33.0),
        ("imports", 4.0, 29.0),
        ("weights_and_kv_cache", 15.0, 8.0),
        ("warm_up", 1.0, 2.0),
        # It takes longer than it usually does: from here on, only what comes after it is known.
        ("weights_and_kv_cache", 500.0, 3.0),
        ("warm_up", 500.0, 0.0),
    ],
)
def test_eta_is_the_rest_of_this_and_later_phases(name: str, ago_s: float, eta_s: float) -> None:
    assert progress(status(starting=1), {"a": phase(name, ago_s)}, NOW) == Progress(name, eta_s)


@pytest.mark.parametrize(("warm_node", "eta_s"), [(True, 3.0), (False, 20.0)])
def test_eta_uses_the_replicas_kind_of_node(warm_node: bool, eta_s: float) -> None:
    kinds = {"warm_node_phases_s": {"weights_and_kv_cache": 3.0}, "cold_node_phases_s": PHASES_S}
    document = {**phase("weights_and_kv_cache", 0.0), "warm_node": warm_node}
    expected = eta_s if warm_node else eta_s + 3.0  # and the warm-up

    assert progress(status(starting=1, **kinds), {"a": document}, NOW).eta_s == expected


def test_of_several_replicas_the_nearest_counts() -> None:
    phases = {"a": phase("imports", 1.0), "b": phase("warm_up", 2.0), "c": phase("imports", 9.0)}

    assert progress(status(starting=3), phases, NOW) == Progress("warm_up", 1.0)


def test_documents_of_killed_replicas_are_no_start() -> None:
    phases = {"killed": phase("warm_up", 7200.0), "b": phase("imports", 1.0)}

    assert progress(status(starting=1), phases, NOW) == Progress("imports", 32.0)
    assert progress(status(), phases, NOW) == Progress("requested", COLD_START_S)


def test_new_replica_counts_before_the_policy_sees_it() -> None:
    assert progress(status(pending=1), {"a": phase("imports", 0.5)}, NOW) == Progress("imports", 32.5)


def test_pending_replica_ignores_the_phase_of_a_killed_one() -> None:
    """For 600 s clients were told that a replica warmed up, which had no slot to run."""
    phases = {"killed": phase("warm_up", 700.0)}

    assert progress(status(pending=1, pending_s=600), phases, NOW) == Progress(
        "pending_capacity", COLD_START_S
    )
    assert progress(status(pending=1, pending_s=600), {"a": phase("imports", 2.0)}, NOW).phase == "imports"


@pytest.mark.parametrize("over", ["ready", "failed", "draining"])
def test_replica_that_is_not_starting_is_ignored(over: str) -> None:
    assert progress(status(starting=1), {"a": phase(over, 60.0)}, NOW) == Progress("process", COLD_START_S)


def test_a_replica_that_is_ready_needs_ray_only() -> None:
    assert progress(status(starting=1), {"a": phase("ready", 0.5)}, NOW) == Progress("ready", 0.0)


@pytest.mark.parametrize(
    ("counts", "name"),
    [
        ({}, "requested"),
        ({"starting": 1}, "process"),
        ({"pending": 1}, "pending_capacity"),
        ({"pending": 1, "starting": 1}, "pending_capacity"),
    ],
)
def test_before_the_first_phase_a_whole_cold_start_is_ahead(counts: dict[str, int], name: str) -> None:
    assert progress(status(**counts), {}, NOW) == Progress(name, COLD_START_S)
    assert progress(unmeasured(**counts), {}, NOW) == Progress(name, None)


def test_when_a_full_replica_has_room_nobody_knows() -> None:
    assert progress(status(ready=2), {"a": phase("ready", 60.0)}, NOW) == Progress("busy", None)


def test_starting_replica_counts_beside_full_ones() -> None:
    assert progress(status(ready=2, starting=1), {"a": phase("warm_up", 1.0)}, NOW) == Progress(
        "warm_up", 2.0
    )


def test_replica_with_an_eta_is_preferred() -> None:
    phases = {"a": phase("download", 1.0), "b": phase("imports", 5.0)}

    assert progress(status(starting=2), phases, NOW) == Progress("imports", 28.0)


def test_without_a_status_the_newest_phase_counts() -> None:
    assert progress(None, {}, NOW) == UNKNOWN
    phases = {"a": phase("imports", 5.0), "b": phase("warm_up", 1.0), "c": phase("ready", 0.5)}
    assert progress(None, phases, NOW) == Progress("warm_up", None)


# The reader.

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
    monkeypatch.setattr(cold_start_progress, "_WAIT_S", LIMIT_S)
    monkeypatch.setattr(cold_start_progress, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(cold_start_progress, "time", Clock())
    return Store()


@pytest.fixture
def reader(store: Store) -> ProgressReader:
    return ProgressReader(store.stored, "Engine-tide")


async def test_progress_is_read_off_the_event_loop_while_started(
    store: Store, reader: ProgressReader
) -> None:
    assert (reader.current, store.reads) == (UNKNOWN, 0)

    reader.start()
    await store.next_read()

    assert reader.current == Progress("pending_capacity", 40.0)
    assert threading.main_thread() not in store.threads
    reader.stop()
    assert reader.current == UNKNOWN


async def test_progress_survives_a_failing_store_for_ten_seconds(
    store: Store, reader: ProgressReader
) -> None:
    reader.start()
    await store.next_read()

    store.fails = ConnectionError("no GCS")
    await store.next_read()
    assert reader.current == Progress("pending_capacity", 40.0)
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
async def test_progress_is_unknown_without_a_status(
    store: Store, reader: ProgressReader, status: Any
) -> None:
    store.state = StoredState(status)

    reader.start()
    await store.next_read()

    assert reader.current == UNKNOWN
    reader.stop()
