import asyncio
import threading
from typing import Any

import pytest

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.cluster.serve_status import ServeStatus
from serve_app.ingress.cold_start_progress import UNKNOWN, ProgressReader, StoredState
from serve_app.ingress.cold_start_progress import ColdStartProgress as Progress
from serve_app.ingress.cold_start_progress import cold_start_progress as progress
from tests.stub_engine import LIMIT_S

NOW = 1_700_000_000.0
PHASES_S = {"process": 2.0, "imports": 10.0, "weights_and_kv_cache": 20.0, "warm_up": 3.0}
COLD_START_S = 35.0


def status(**more: Any) -> dict[str, Any]:
    document = {"ready": 0, "starting": 0, "pending": 0, "cold_start_s": COLD_START_S, "phases_s": PHASES_S}
    kinds = {"warm_node_phases_s": {}, "cold_node_phases_s": {}}
    return {**document, **kinds, **more}


def phase(name: str, ago_s: float) -> dict[str, Any]:
    return {"phase": name, "since": NOW - ago_s, "durations_s": {}, "warm_node": False}


KILLED = {"killed": phase("warm_up", 7200.0)}
STARTS = {"b": phase("imports", 1.0)}
SEVERAL = {"a": phase("imports", 1.0), "b": phase("warm_up", 2.0), "c": phase("imports", 9.0)}
READY = {"a": phase("ready", 60.0)}
KINDS = {"warm_node_phases_s": {"weights_and_kv_cache": 3.0}, "cold_node_phases_s": PHASES_S}
WHOLE = COLD_START_S
CASES: dict[str, tuple[dict[str, Any] | None, dict[str, dict[str, Any]], Progress]] = {
    "the rest of a phase and all later ones": (
        status(starting=1), {"a": phase("imports", 4.0)}, Progress("imports", 29.0)
    ),
    "a phase that takes longer than usual": (
        status(starting=1),
        {"a": phase("weights_and_kv_cache", 500.0)},
        Progress("weights_and_kv_cache", 483.0),
    ),
    "the last phase takes longer than usual": (
        status(starting=1), {"a": phase("warm_up", 500.0)}, Progress("warm_up", 497.0)
    ),
    "on a warm node": (
        status(starting=1, **KINDS), {"a": {**phase("weights_and_kv_cache", 0.0), "warm_node": True}},
        Progress("weights_and_kv_cache", 3.0),
    ),
    "on a cold node": (
        status(starting=1, **KINDS), {"a": {**phase("weights_and_kv_cache", 0.0), "warm_node": False}},
        Progress("weights_and_kv_cache", 23.0),
    ),
    "the nearest of several": (status(starting=3), SEVERAL, Progress("warm_up", 1.0)),
    "one with an ETA before one without": (
        status(starting=2), {"a": phase("download", 1.0), "b": phase("imports", 5.0)},
        Progress("imports", 28.0),
    ),
    "beside full ones": (
        status(ready=2, starting=1), {"a": phase("warm_up", 1.0)}, Progress("warm_up", 2.0)
    ),
    "a killed one is no start": (status(starting=1), KILLED | STARTS, Progress("imports", 32.0)),
    "a killed one while none starts": (status(), KILLED | STARTS, Progress("requested", WHOLE)),
    "a new one before the policy sees it": (
        status(pending=1), {"a": phase("imports", 0.5)}, Progress("imports", 32.5)
    ),
    # For 600 s clients were told that a replica warmed up, which had no node.
    "no capacity, and a killed one": (
        status(pending=1, pending_s=600), {"killed": phase("warm_up", 700.0)},
        Progress("pending_capacity", WHOLE),
    ),
    "no capacity until now": (
        status(pending=1, pending_s=600), {"a": phase("imports", 2.0)}, Progress("imports", 31.0)
    ),
    "ready, and not listed by Ray yet": (
        status(starting=1), {"a": phase("ready", 0.5)}, Progress("ready", 0.0)
    ),
    "ready for long": (status(starting=1), READY, Progress("process", WHOLE)),
    "failed": (status(starting=1), {"a": phase("failed", 60.0)}, Progress("process", WHOLE)),
    "draining": (status(starting=1), {"a": phase("draining", 60.0)}, Progress("process", WHOLE)),
    "all replicas are full": (status(ready=2), READY, Progress("busy", None)),
    "not started yet": (status(), {}, Progress("requested", WHOLE)),
    "the process starts": (status(starting=1), {}, Progress("process", WHOLE)),
    "no capacity": (status(pending=1), {}, Progress("pending_capacity", WHOLE)),
    "no capacity for one of two": (status(pending=1, starting=1), {}, Progress("pending_capacity", WHOLE)),
    "third in the line": (
        status(pending=1, line={"place": 3, "eta_s": 70}), {}, Progress("pending_capacity", 70, place=3)
    ),
    "in the line, at zero": (
        status(line={"place": 1, "eta_s": None}), {}, Progress("pending_capacity", None, place=1)
    ),
    "started before the policy leaves the line": (
        status(starting=1, line={"place": 1, "eta_s": 9}), {"a": phase("imports", 2.0)},
        Progress("imports", 31.0),
    ),
    "no start measured": (
        status(cold_start_s=None, phases_s={}, pending=1), {}, Progress("pending_capacity", None)
    ),
    "no policy": (None, SEVERAL | {"d": READY["a"]}, Progress("imports", None)),
    "no policy and no replica": (None, {}, UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_progress_of_a_cold_start(case: str) -> None:
    policy, phases, expected = CASES[case]

    assert progress(policy, phases, NOW) == expected


@pytest.mark.parametrize(
    ("eta_s", "seconds"), [(None, 30), (0.0, 1), (0.2, 1), (1.0, 1), (41.01, 42), (600.0, 600)]
)
def test_a_refused_client_may_return_after_the_eta(eta_s: float | None, seconds: int) -> None:
    assert Progress("imports", eta_s).retry_after_s == seconds


# The reader.

MODEL: dict[str, Any] = {
    "ready": 0, "starting": 0, "pending": 1, "pending_s": 0, "reason": "",
    "cold_start_s": 40.0, "phases_s": {}, "warm_node_phases_s": {}, "cold_node_phases_s": {},
}  # fmt: skip
PENDING = Progress("pending_capacity", 40.0)


class FakeStore:
    """The stored state, as the test sets it, and a reader of it."""

    def __init__(self) -> None:
        self.state = StoredState({"at": NOW, "models": {"Engine-tide": MODEL}})
        self.fails: Exception | None = None
        self.serve = ServeStatus({"Engine-tide": None})
        self.serve_takes_s = 0.0
        self.reads = 0
        self.serve_reads = 0
        self.refusals: list[str] = []
        self.requested = asyncio.Event()
        self.now = NOW
        self.threads: set[threading.Thread] = set()
        stored = BoundedCall("stored state", self._read, -1.0, lambda: self.now)
        serve = BoundedCall("Serve's status", self._read_serve, -1.0, lambda: self.now)
        self.reader = ProgressReader(stored, serve, "Engine-tide", interval_s=0.0, clock=lambda: self.now)

    def _read(self) -> StoredState:
        self.reads += 1
        self.threads.add(threading.current_thread())
        if self.fails is not None:
            raise self.fails
        return self.state

    def _read_serve(self) -> ServeStatus:
        self.serve_reads += 1
        self.now += self.serve_takes_s
        return self.serve

    async def next_read(self) -> None:
        """Wait until a reading that begins after this moment is recorded.

        The next one may be under way. The one after it is recorded when a third begins.
        """
        enough = self.reads + 3
        async with asyncio.timeout(LIMIT_S):
            while self.reads < enough:
                await asyncio.sleep(0)


async def test_progress_is_read_off_the_event_loop_while_started() -> None:
    store = FakeStore()
    assert (store.reader.current, store.reads) == (UNKNOWN, 0)

    store.reader.start(store.refusals.append, store.requested.set)
    await store.next_read()

    assert store.reader.current == PENDING
    assert threading.main_thread() not in store.threads
    store.reader.stop()
    assert store.reader.current == UNKNOWN


@pytest.mark.parametrize("target", [0, 1])
async def test_reader_tells_that_no_replica_is_wanted(target: int) -> None:
    store = FakeStore()
    store.state = StoredState({"at": NOW, "models": {"Engine-tide": {**MODEL, "pending": target}}})

    store.reader.start(store.refusals.append, store.requested.set)
    await store.next_read()
    store.reader.stop()

    assert store.requested.is_set() is not bool(target)


async def test_progress_survives_a_failing_store_for_ten_seconds() -> None:
    store = FakeStore()
    store.reader.start(store.refusals.append, store.requested.set)
    await store.next_read()

    store.fails = ConnectionError("no GCS")
    await store.next_read()
    store.now += 9.5
    assert store.reader.current == PENDING
    store.now += 1.0
    assert store.reader.current == UNKNOWN
    store.reader.stop()


@pytest.mark.parametrize(
    "status",
    [None, {"at": NOW, "models": {}}, {"at": NOW - 60.0, "models": {"Engine-tide": MODEL}}],
    ids=["no policy", "another model's", "a policy that is gone"],
)
async def test_progress_is_unknown_without_a_status(status: Any) -> None:
    store = FakeStore()
    store.state = StoredState(status)

    store.reader.start(store.refusals.append, store.requested.set)
    await store.next_read()

    assert store.reader.current == UNKNOWN
    store.reader.stop()


# After a failed rollout.

IDLE = MODEL | {"pending": 0}
BUILD = """Deploying app 'shop' failed with exception:
Traceback (most recent call last):
SettingsError: invalid settings:
  - models[0].max_num_seq = 3: no such setting
"""
WHY = (
    "the last rollout failed: Deploying app 'shop' failed with exception: "
    "models[0].max_num_seq = 3: no such setting"
)
FORGOTTEN = ServeStatus({}, BUILD)


def idle(phases: dict[str, Any] | None = None) -> StoredState:
    status = {"at": NOW, "models": {"Engine-tide": IDLE}}
    return StoredState(status, {"Engine-tide": phases or {}})


@pytest.mark.parametrize("state", [idle(), StoredState()], ids=["at zero", "no policy"])
async def test_failed_rollout_refuses_while_no_replica_starts(state: StoredState) -> None:
    store = FakeStore()
    store.state, store.serve = state, FORGOTTEN

    store.reader.start(store.refusals.append, store.requested.set)
    await store.next_read()

    assert store.reader.current == Progress("rollout_failed", None, WHY)
    assert set(store.refusals) == {WHY}
    store.serve = ServeStatus({}, "")  # the next rollout has begun
    await store.next_read()
    assert store.reader.current.reason == ""
    store.reader.stop()


@pytest.mark.parametrize(
    ("serve", "phase"),
    [
        (ServeStatus({}, ""), "requested"),
        (ServeStatus({"Engine-tide": None}, "Ingress: no such keys"), "requested"),
        (ServeStatus(), "requested"),
    ],
    ids=["a rollout in progress", "engines that may start", "nothing known"],
)
async def test_queue_waits_for_replicas_that_may_start(serve: ServeStatus, phase: str) -> None:
    store = FakeStore()
    store.state, store.serve = idle(), serve

    store.reader.start(store.refusals.append, store.requested.set)
    await store.next_read()

    assert (store.reader.current.phase, store.refusals) == (phase, [])
    assert store.serve_reads
    store.reader.stop()


@pytest.mark.parametrize(
    ("status", "phases"),
    [(IDLE | {"starting": 1}, {"r1": phase("imports", 0)}), (MODEL, {}), (IDLE | {"ready": 1}, {})],
    ids=["starting", "pending", "to be replaced"],
)
async def test_replica_on_its_way_outlives_a_failed_rollout(status: Any, phases: Any) -> None:
    store = FakeStore()
    store.state = StoredState({"at": NOW, "models": {"Engine-tide": status}}, {"Engine-tide": phases})
    store.serve = FORGOTTEN

    store.reader.start(store.refusals.append, store.requested.set)
    await store.next_read()

    assert (store.refusals, store.serve_reads) == ([], 0)
    store.reader.stop()


async def test_old_status_of_ray_serve_refuses_nothing() -> None:
    store = FakeStore()
    store.state, store.serve, store.serve_takes_s = idle(), FORGOTTEN, 2.5

    store.reader.start(store.refusals.append, store.requested.set)
    await store.next_read()

    assert store.serve_reads
    assert store.refusals == []
    store.reader.stop()
