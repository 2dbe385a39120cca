import json
import logging
from typing import Any

import pytest

from serve_app.wire.documents import (
    DECISIONS,
    KNOBS,
    LEARNED,
    NAMESPACE,
    STATUS,
    claim,
    erase,
    keys,
    parse_status,
    put_document,
    read_document,
)
from tests.stub_kv import StubKv, stored

pytestmark = pytest.mark.usefixtures("kv")


KINDS = (KNOBS, STATUS, DECISIONS, LEARNED)


@pytest.mark.parametrize(
    "document", [{"at": 1_700_000_000.25, "models": {"é": [1, None, True]}}, [], {}, 0], ids=repr
)
def test_what_was_put_is_what_is_got(document: object) -> None:
    put_document(STATUS, "shop", document)

    assert stored(STATUS, "shop") == document


def test_nothing_written_is_none_and_not_an_empty_document() -> None:
    assert stored(STATUS, "shop") is None


def test_a_document_replaces_the_one_before() -> None:
    put_document(STATUS, "shop", {"at": 1, "old": True})
    put_document(STATUS, "shop", {"at": 2})

    assert stored(STATUS, "shop") == {"at": 2}


def test_kinds_and_applications_are_kept_apart() -> None:
    for kind in KINDS:
        for app in ("shop", "shop2"):
            put_document(kind, app, [kind, app])

    found = [stored(kind, app) for kind in KINDS for app in ("shop", "shop2")]
    assert found == [[kind, app] for kind in KINDS for app in ("shop", "shop2")]


def test_five_hundred_decision_records_are_kept_small_in_the_store(kv: StubKv) -> None:
    records = [
        {"seq": seq, "reason": "8 requests are waiting, 8 a replica", "terms": [{"name": "queue"}] * 5}
        for seq in range(500)
    ]

    put_document(DECISIONS, "shop", records)

    (stored,) = kv.kept.values()
    assert len(stored) < len(json.dumps(records)) / 10
    assert set(kv.kept) == {(NAMESPACE, b"decisions/shop")}


def test_store_that_is_gone_raises(kv: StubKv) -> None:
    kv.fails = RuntimeError("GCS is gone")

    with pytest.raises(RuntimeError, match="GCS is gone"):
        put_document(STATUS, "shop", {})
    with pytest.raises(RuntimeError, match="GCS is gone"):
        read_document(STATUS, "shop", dict)


def test_claim_is_free_again_after_erase() -> None:
    assert [claim("spares/a"), claim("spares/a"), claim("spares/b")] == [True, False, True]

    erase("spares/a")

    assert claim("spares/a")


def test_keys_are_listed_by_their_prefix() -> None:
    for key in ("spares/a/one", "spares/b/é", "other/a"):
        claim(key)

    assert sorted(keys("spares/")) == ["spares/a/one", "spares/b/é"]


MODEL: dict[str, Any] = {
    "ready": 0, "starting": 1, "pending": 0, "pending_s": 0, "reason": "", "cold_start_s": None,
    "phases_s": {"imports": 7.5},
    "warm_node_phases_s": {}, "cold_node_phases_s": {},
}  # fmt: skip


def test_a_document_is_read_through_what_checks_it() -> None:
    put_document(STATUS, "shop", {"at": 1, "models": {"Engine-a": MODEL}})

    assert read_document(STATUS, "shop", parse_status) == {"at": 1, "models": {"Engine-a": MODEL}}
    assert read_document(STATUS, "shop2", parse_status) is None


@pytest.mark.parametrize(
    "status",
    [
        None, 7, [], {}, {"at": 1}, {"at": None, "models": {}}, {"at": 1, "models": []},
        {"at": 1, "models": {"Engine-a": {}}},
        {"at": 1, "models": {"Engine-a": {**MODEL, "starting": "many"}}},
        {"at": 1, "models": {"Engine-a": {**MODEL, "reason": None}}},
        {"at": 1, "models": {"Engine-a": {**MODEL, "phases_s": [1.0]}}},
        {"at": 1, "models": {"Engine-a": {**MODEL, "phases_s": {"imports": {}}}}},
        {"at": 1, "models": {"Engine-a": {**MODEL, "cold_start_s": "long"}}},
    ],
    ids=repr,
)  # fmt: skip
def test_status_of_another_version_is_absent_and_logged_once(
    status: Any, caplog: pytest.LogCaptureFixture
) -> None:
    put_document(STATUS, "shop", status)

    with caplog.at_level(logging.WARNING, "ray.serve"):
        for _ in range(3):
            assert read_document(STATUS, "shop", parse_status) is None

    assert len(caplog.messages) == 1
    assert "the document status/shop in Ray's key-value store cannot be read" in caplog.messages[0]


def test_a_damaged_document_is_logged_again_once_it_was_whole(
    kv: StubKv, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ray.serve"):
        for _ in range(2):
            kv.kept[NAMESPACE, b"status/shop"] = b"no zlib stream"
            assert read_document(STATUS, "shop", dict) is None
            put_document(STATUS, "shop", {"at": 1})
            assert read_document(STATUS, "shop", dict) == {"at": 1}

    assert len(caplog.messages) == 2
