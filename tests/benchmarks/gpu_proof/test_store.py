import json

import pytest

from benchmarks.gpu_proof.outcome import Outcome, RefusedError
from benchmarks.gpu_proof.store import DOCUMENT, Store, read_document
from tests.benchmarks.gpu_proof.proofs import IDENTITY, done


def test_an_outcome_comes_back_as_it_was_kept(tmp_path) -> None:
    Store(tmp_path, IDENTITY).keep(done("slo", rps=3.5))

    again = Store(tmp_path, IDENTITY)
    assert again.outcome("slo") == done("slo", rps=3.5)
    assert again.outcome("capacity") is None


def test_a_forgotten_stage_has_not_been_measured(tmp_path) -> None:
    store = Store(tmp_path, IDENTITY)
    store.keep(done("slo"))
    store.forget("slo")
    store.forget("never-kept")

    assert store.outcome("slo") is None


def test_the_folder_of_another_proof_is_refused_with_what_differs(tmp_path) -> None:
    Store(tmp_path, IDENTITY)

    with pytest.raises(RefusedError, match="model: embedded, now org/other"):
        Store(tmp_path, IDENTITY | {"model": "org/other"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "is not JSON"), ("[]", "must be a JSON object"), ("{}", "is not of this version")],
)
def test_a_file_that_is_no_outcome_is_refused_by_name(tmp_path, text: str, reason: str) -> None:
    store = Store(tmp_path, IDENTITY)
    (tmp_path / "stages" / "slo.json").write_text(text)

    with pytest.raises(RefusedError, match=rf"slo\.json.*{reason}"):
        store.outcome("slo")


def test_the_document_has_the_stages_in_their_order_and_names_the_missing(tmp_path) -> None:
    store = Store(tmp_path, IDENTITY)
    store.write_machine({"gpus": []})
    store.keep(Outcome("late", "cannot", "it takes two", "2026-01-02T03:04:05+00:00", 0.0, {}))
    store.keep(done("early"))
    store.write_document({"early": "Early", "middle": "Middle", "late": "Late"})

    document = read_document(tmp_path / DOCUMENT)
    assert [(one["title"], one["state"]) for one in document["stages"]] == [
        ("Early", "done"),
        ("Late", "cannot"),
    ]
    assert document["not measured"] == ["middle"]
    assert document["identity"] == IDENTITY


def test_a_file_is_whole_or_the_one_before(tmp_path, monkeypatch) -> None:
    store = Store(tmp_path, IDENTITY)
    store.keep(done("slo", rps=1.0))
    monkeypatch.setattr(json, "dump", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.keep(done("slo", rps=2.0))

    assert store.outcome("slo") == done("slo", rps=1.0)


def test_a_figure_that_json_does_not_have_is_an_error_and_not_written(tmp_path) -> None:
    store = Store(tmp_path, IDENTITY)
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.keep(done("slo", rps=float("nan")))

    assert store.outcome("slo") is None


def test_another_json_file_is_no_proof(tmp_path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(RefusedError, match="not the document of a proof"):
        read_document(tmp_path / "x.json")
