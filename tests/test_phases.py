from __future__ import annotations

from types import SimpleNamespace

import pytest

from serve_app import phases
from serve_app.phases import forget_phase, publish_phase, read_phases


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], bytes]:
    """Ray's key-value store: keys and values as bytes, lists by prefix."""
    kept: dict[tuple[str, str], bytes] = {}

    def put(key: str, value: bytes, *, overwrite: bool, namespace: str) -> None:
        assert overwrite
        kept[namespace, key] = value

    monkeypatch.setattr(
        phases,
        "internal_kv",
        SimpleNamespace(
            _internal_kv_put=put,
            _internal_kv_del=lambda key, *, namespace: kept.pop((namespace, key), None),
            _internal_kv_get=lambda key, *, namespace: kept.get((namespace, key.decode())),
            _internal_kv_list=lambda prefix, *, namespace: [
                key.encode() for space, key in kept if space == namespace and key.startswith(prefix)
            ],
        ),
    )
    return kept


def test_what_the_replicas_of_a_deployment_published_last_is_read_back_by_replica() -> None:
    publish_phase("app", "Engine-a", "r1", '{"phase":"imports"}')
    publish_phase("app", "Engine-a", "r1", '{"phase":"ready"}')
    publish_phase("app", "Engine-a", "r2", '{"phase":"imports"}')

    assert read_phases("app", "Engine-a") == {"r1": {"phase": "ready"}, "r2": {"phase": "imports"}}


def test_deployments_and_applications_whose_names_begin_alike_are_kept_apart() -> None:
    publish_phase("app", "Engine-a", "r1", "{}")
    publish_phase("app", "Engine-ab", "r2", "{}")
    publish_phase("app2", "Engine-a", "r3", "{}")

    assert set(read_phases("app", "Engine-a")) == {"r1"}


def test_a_replica_that_is_no_more_is_forgotten() -> None:
    publish_phase("app", "Engine-a", "r1", "{}")
    publish_phase("app", "Engine-a", "r2", "{}")

    forget_phase("app", "Engine-a", "r1")

    assert set(read_phases("app", "Engine-a")) == {"r2"}


def test_a_document_that_goes_while_it_is_read_is_left_out(
    store: dict[tuple[str, str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_phase("app", "Engine-a", "r1", "{}")
    monkeypatch.setattr(phases.internal_kv, "_internal_kv_get", lambda key, *, namespace: None)

    assert read_phases("app", "Engine-a") == {}
