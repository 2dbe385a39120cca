from __future__ import annotations

import pytest

from serve_app.phases import forget_phase, publish_phase, read_phases
from tests.stub_kv import StubKv

pytestmark = pytest.mark.usefixtures("kv")


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
    kv: StubKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_phase("app", "Engine-a", "r1", "{}")
    monkeypatch.setattr(kv, "_internal_kv_get", lambda key, *, namespace: None)

    assert read_phases("app", "Engine-a") == {}
