import json
import logging
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID

from serve_app.wire.documents import NAMESPACE
from serve_app.wire.phases import Phases, forget_phase, publish_phase, read_phases
from tests.stub_kv import StubKv

pytestmark = pytest.mark.usefixtures("kv")


def document(phase: str = "imports", **more: Any) -> dict[str, Any]:
    about = {"warm_node": False, "identity": "a 7B"}
    return {"phase": phase, "since": 1_700_000_000.0, "durations_s": {"process": 1.5}, **about, **more}


def publish(replica: str, phase: str = "imports", app: str = "app", name: str = "Engine-a") -> None:
    publish_phase(app, name, replica, json.dumps(document(phase)))


def alive(kv: StubKv, *replicas: str) -> None:
    kv.replicas = {("app", "Engine-a", replica) for replica in replicas}


def read() -> Phases:
    return read_phases("app", ["Engine-a"])["Engine-a"]


def test_deployments_and_applications_whose_names_begin_alike_are_kept_apart(kv: StubKv) -> None:
    publish("r1")
    publish("r2", name="Engine-ab")
    publish("r3", app="app2")
    kv.replicas = {("app", "Engine-a", "r1"), ("app", "Engine-ab", "r2"), ("app2", "Engine-a", "r3")}

    found = read_phases("app", ["Engine-a", "Engine-ab"])

    assert {name: set(phases.existing) for name, phases in found.items()} == {
        "Engine-a": {"r1"},
        "Engine-ab": {"r2"},
    }


def test_documents_of_all_models_are_read_at_once(kv: StubKv) -> None:
    names = [f"Engine-{number}" for number in range(20)]
    for name in [*names, "Engine-other"]:
        publish("r1", name=name)
    kv.replicas = {("app", name, "r1") for name in names[1:]}

    found = read_phases("app", names)

    assert kv.calls == ["list", "list_named_actors"]
    assert list(found) == names
    assert found[names[0]] == Phases({}, {"r1": document()})
    assert all(found[name] == Phases({"r1": document()}) for name in names[1:])


@pytest.mark.parametrize("phase", ["imports", "ready", "draining"])
def test_what_a_killed_replica_published_is_told_apart(kv: StubKv, phase: str) -> None:
    publish("killed", phase)
    publish("starts")
    alive(kv, "starts")

    assert read() == Phases({"starts": document()}, {"killed": document(phase)})


def test_why_a_replica_could_not_start_outlives_it(kv: StubKv) -> None:
    failed = document("failed", during="imports", reason="OSError: no such file")
    publish_phase("app", "Engine-a", "r1", json.dumps(failed))

    assert read() == Phases({"r1": failed})


def test_replicas_are_listed_after_reading_their_documents(
    kv: StubKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round, a replica that starts in between would be taken for a killed one."""
    publish("r0")
    alive(kv, "r0")
    get = kv._internal_kv_get

    def starting_meanwhile(key: bytes, *, namespace: str) -> bytes | None:
        alive(kv, "r0", "r1")
        publish("r1")
        return get(key, namespace=namespace)

    monkeypatch.setattr(kv, "_internal_kv_get", starting_meanwhile)
    read()
    monkeypatch.undo()

    assert kv.calls == ["list", "list_named_actors"]


def test_a_replica_that_is_no_more_is_forgotten(kv: StubKv) -> None:
    alive(kv, "r1", "r2")
    publish("r1")
    publish("r2")

    forget_phase("app", "Engine-a", "r1")

    assert set(read().existing) == {"r2"}


def test_document_removed_during_the_read_is_left_out(kv: StubKv, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("r1")
    monkeypatch.setattr(kv, "_internal_kv_get", lambda key, *, namespace: None)

    assert read() == Phases()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\xfe", b"{", b"[]", b"7", b"{}", b'{"phase": 1, "since": 0, "durations_s": {}}',
        b'{"phase": "imports", "since": "soon", "durations_s": {}}',
        b'{"phase": "imports", "since": 0, "durations_s": {"imports": "long"}}',
        b'{"phase": "imports", "since": 0, "durations_s": []}',
        b'{"phase": "failed", "since": 0, "durations_s": {}}',
        b'{"phase": "draining", "since": 0, "until": null, "durations_s": {}}',
        b"[" * 100_000,
    ],
    ids=lambda data: repr(data[:50]),
)  # fmt: skip
def test_unreadable_document_is_left_out_and_logged_once(
    kv: StubKv, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    alive(kv, "good", "bad")
    publish("good")
    kv.kept[NAMESPACE, b"phase/app/Engine-a/bad"] = data

    with caplog.at_level(logging.WARNING, "ray.serve"):
        for _ in range(3):
            assert read() == Phases({"good": document()})

    (message,) = caplog.messages
    assert message.startswith("the document phase/app/Engine-a/bad in Ray's key-value store cannot be read:")


def test_replicas_are_named_as_ray_names_its_actors(kv: StubKv) -> None:
    alive(kv, "r1")

    assert kv.list_named_actors(all_namespaces=True)[-1] == {
        "namespace": "serve",
        "name": ReplicaID("r1", DeploymentID("Engine-a", "app")).to_full_id_str(),
    }
