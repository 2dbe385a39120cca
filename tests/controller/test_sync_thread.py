"""The sync's thread: when it has a turn, and what ends it."""

import logging
import threading
from collections.abc import Iterator

import pytest

from serve_app.controller import sync as sync_module
from serve_app.controller.sync import Sync
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.wire.documents import DECISIONS, KNOBS, put_document
from serve_app.wire.served_models import ServedApplication, ServedModel
from tests.stub_engine import LIMIT_S
from tests.stub_kv import StubKv, stored


@pytest.fixture
def sync(kv: StubKv, monkeypatch: pytest.MonkeyPatch) -> Sync:
    """Of an application that has said what it serves; its thread is not started."""
    monkeypatch.setattr(sync_module, "read_nodes", tuple)
    model = ServedModel("tide", "Engine-tide", Knobs())
    put_document(
        KNOBS, "shop", ServedApplication({model.deployment: model}, IngressKnobs()).document(1_700_000_000.0)
    )
    return Sync("shop")


class Turns:
    """Counts an sync's turns as they end, for a test to wait for."""

    def __init__(self, sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sync = sync
        self._ended = threading.Semaphore(0)
        turn = sync._turn

        def counted(now: float) -> None:
            try:
                turn(now)
            finally:
                self._ended.release()

        monkeypatch.setattr(sync, "_turn", counted)
        # Only `send` begins another turn, so that a test knows how many there were.
        monkeypatch.setattr(sync_module, "_POLL_S", LIMIT_S)

    def next(self) -> None:
        """Have one turn, and wait for its end."""
        self._sync.send()
        self.ended()

    def ended(self) -> None:
        assert self._ended.acquire(timeout=LIMIT_S)


@pytest.fixture
def turns(sync: Sync, monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    yield Turns(sync, monkeypatch)
    sync.stop()
    if sync._thread.is_alive():
        sync._thread.join(LIMIT_S)
    assert not sync._thread.is_alive()


def test_the_thread_reads_at_once_and_writes_when_it_is_told_to(sync: Sync, turns: Turns) -> None:
    sync.start()
    turns.ended()
    assert sync.inbox.served is not None

    sync.outbox.decisions, sync.outbox.decisions_seq = [{"seq": 1}], 1
    turns.next()

    assert stored(DECISIONS, "shop") == [{"seq": 1}]


def test_a_store_that_is_gone_is_logged_once_and_the_thread_goes_on(
    sync: Sync, turns: Turns, kv: StubKv, caplog: pytest.LogCaptureFixture
) -> None:
    kv.fails = RuntimeError("GCS is gone")
    with caplog.at_level(logging.ERROR, "ray.serve"):
        sync.start()
        turns.ended()
        turns.next()
        turns.next()
        kv.fails = None
        turns.next()
        assert sync.inbox.served is not None
        kv.fails = RuntimeError("GCS is gone")
        turns.next()
        # A turn ends before what it raised is logged; the end of the one after comes later than that.
        turns.next()

    assert caplog.messages == ["autoscaling of shop: could not read or write documents"] * 2
    assert caplog.records[0].exc_info is not None


def test_another_failure_is_logged_too(
    sync: Sync, turns: Turns, kv: StubKv, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "ray.serve"):
        kv.fails = RuntimeError("GCS is gone")
        sync.start()
        turns.ended()
        kv.fails = RuntimeError("GCS is back, and has no room")
        turns.next()
        turns.next()

    assert len(caplog.records) == 2


def test_a_thread_that_is_stopped_has_no_further_turn(sync: Sync, turns: Turns) -> None:
    sync.start()
    turns.ended()

    sync.stop()
    sync._thread.join(LIMIT_S)

    assert not sync._thread.is_alive()
    assert not turns._ended.acquire(blocking=False)
