"""This version reads what 0.1.0 wrote. `recorded/0.1.0` has samples, which nothing may change."""

import json
import sqlite3
from pathlib import Path
from typing import Any, cast

import pytest

from serve_app.batch.store import BatchStore
from serve_app.cluster.pending_pods import PendingPods
from serve_app.controller.document_exchange import DocumentExchange
from serve_app.ledger.store import UsageStore
from serve_app.ledger.usage import Amounts
from serve_app.wire.documents import KNOBS, LEARNED, put_document
from tests.controller.fake_cluster import FakeCluster
from tests.stub_kv import StubKv

SAMPLES = Path(__file__).parent / "recorded" / "0.1.0"
NOW = 1_800_000_000


def sample(name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((SAMPLES / name).read_text("utf-8")))


@pytest.fixture
def exchange(kv: StubKv) -> DocumentExchange:
    cluster = FakeCluster()
    put_document(LEARNED, "shop", sample("learned.json"))
    put_document(KNOBS, "shop", sample("knobs.json"))
    exchange = DocumentExchange("shop", cluster.read_nodes, cast(PendingPods, cluster))
    exchange.turn(float(NOW))
    return exchange


def test_learned_state_is_read(exchange: DocumentExchange) -> None:
    learned = exchange.inbox.learned

    assert learned is not None
    memory = learned.memories["Engine-tide"]
    assert (memory.identity, [identity for identity, _ in memory.former]) == ("a 7B", ["a 1B"])
    assert memory.state.service.steps == pytest.approx(8854, abs=1)
    assert exchange.inbox.cold_starts("Engine-tide").total_s == 8.0


def test_knobs_are_read(exchange: DocumentExchange) -> None:
    served = exchange.inbox.served

    assert served is not None
    assert served.models["Engine-tide"].knobs.max_replicas == 7
    assert (served.models["Engine-tide"].resources, served.ingress_resources) == ({"GPU": 1.0}, {"CPU": 0.5})


def test_tables_are_read(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "tide.db")
    connection.executescript((SAMPLES / "tables.sql").read_text("utf-8"))
    connection.close()
    url = f"sqlite:///{tmp_path}/tide.db"
    batches, ledger = BatchStore(url), UsageStore(url)

    assert [batch.id for batch in batches.open_batches()] == ["batch-1"]
    assert [file.id for file in batches.files("alice", NOW)] == ["file-1"]
    assert ledger.used("key", 0, 3600) == {"alice": Amounts(1, 10, 5, 5, 1.0, 0.01)}
    batches.close()
    ledger.close()
