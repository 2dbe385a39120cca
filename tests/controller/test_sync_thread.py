"""The sync's thread: when it has a turn, and what ends it."""

import logging
import threading
from collections.abc import Iterator

import pytest

from serve_app.controller.sync import Sync
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.wire.documents import DECISIONS, KNOBS, put_document
from serve_app.wire.served_models import ServedApplication, ServedModel
from tests.stub_engine import LIMIT_S
from tests.stub_kv import StubKv, stored


class Turns:
    """Counts the turns of a sync as they end, for a test to wait for."""

    def __init__(self) -> None:
        self._ended = threading.Semaphore(0)

        class Counted(Sync):
            def turn(_, now: float) -> None:  # noqa: N805
                try:
                    super().turn(now)
                finally:
                    self._ended.release()

        # Only `send` begins another turn, so that a test knows how many there were.
        self.sync = Counted("shop", tuple, poll_s=LIMIT_S)

    def next(self) -> None:
        """Have one turn, and wait for its end."""
        self.sync.send()
        assert self.ended()

    def ended(self, timeout_s: float = LIMIT_S) -> bool:
        return self._ended.acquire(timeout=timeout_s)


@pytest.fixture
def turns(kv: StubKv) -> Iterator[Turns]:
    """Of an application that has said what it serves; the thread is not started."""
    model = ServedModel("tide", "Engine-tide", Knobs())
    put_document(
        KNOBS, "shop", ServedApplication({model.deployment: model}, IngressKnobs()).document(1_700_000_000.0)
    )
    made = Turns()
    yield made
    made.sync.stop()
    assert made.sync.join(LIMIT_S)


@pytest.fixture
def sync(turns: Turns) -> Sync:
    return turns.sync


def test_the_thread_reads_at_once_and_writes_after_send(sync: Sync, turns: Turns) -> None:
    sync.start()
    assert turns.ended()
    assert sync.inbox.served is not None

    sync.outbox.decisions, sync.outbox.decisions_seq = [{"seq": 1}], 1
    turns.next()

    assert stored(DECISIONS, "shop") == [{"seq": 1}]


def test_a_lost_store_is_logged_once(
    sync: Sync, turns: Turns, kv: StubKv, caplog: pytest.LogCaptureFixture
) -> None:
    kv.fails = RuntimeError("GCS is gone")
    with caplog.at_level(logging.ERROR, "ray.serve"):
        sync.start()
        assert turns.ended()
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
        assert turns.ended()
        kv.fails = RuntimeError("GCS is back, and has no room")
        turns.next()
        turns.next()

    assert len(caplog.records) == 2


def test_a_thread_that_is_stopped_has_no_further_turn(sync: Sync, turns: Turns) -> None:
    sync.start()
    assert turns.ended()

    sync.stop()

    assert sync.join(LIMIT_S)
    assert not turns.ended(0.0)
