"""The page of a GPU proof, and its way into the documentation."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_proof.page import REHEARSAL, to_markdown
from benchmarks.gpu_proof.proof import titles
from benchmarks.gpu_proof.publish import publish
from benchmarks.gpu_proof.store import DOCUMENT, Outcome, RefusedError, Store, read_document
from replay.profile import load_profile
from tests.benchmarks.test_gpu_proof import IDENTITY, done

FIT = {
    "coefficients": {
        "base_s": 0.0115, "per_sequence_s": 1.2e-4, "per_kv_token_s": 1.2e-7, "per_prefill_token_s": 5e-5,
    },
    "standard_errors": {},
    "median_relative_error": 0.031,
    "p90_relative_error": 0.12,
    "samples": 80,
    "outliers": 2,
}  # fmt: skip
TIMES = {"count": 10, "never": 1, "p50": 0.05, "p95": 0.15, "p99": None}
LOADED = {
    "requests": 10, "errors": 0, "meets_slos": False, "verdict": "", "missed": [],
    "latencies_s": {"TTFT": TIMES, "ITL": TIMES},
}  # fmt: skip
START = {"first_token_s": 21.0, "phases_s": {"imports": 4.0, "weights_and_kv_cache": 12.0}}
CHAT = {"first_token_s": 0.2, "all_s": 1.5, "longest_gap_s": 0.05}
MEASURED: dict[str, dict[str, Any]] = {
    "model": {"model": "m", "title": "random weights", "load_format": "dummy", "parameters": 8_030_261_248},
    "smoke": {"start_s": 41.0, "phases_s": {"imports": 4.0}, "chat": CHAT},
    "eager-start": {
        "start_s": 30.0, "lost_replicas": 1, "chats": {"top_p": [{"error": "503: starts"}, CHAT]},
    },
    "lost-replica": {
        "core_ended_s": 0.5, "successor_core_s": 3.0, "answered_s": 30.0, "phases_s": {}, "chat": CHAT,
    },
    "step-time": {
        "fit": FIT,
        "shipped": {"name": "a100-80gb", "median_relative_error": 0.5, "median_ratio": 1.5},
        "learned": None,
        "profile": {},
    },
    "capacity": {
        "targets": {"ttft_target_s": 0.2, "itl_target_s": 0.025}, "prompt_tokens": 512, "output_tokens": 128,
        "formula_rps": 5.1, "knee": {"rps": 6.2, "bound": "ITL"}, "profile": {},
        "rates": [
            {"rps": 6.2, "ttft_s": 0.1, "itl_s": 0.02, "attained": 0.99, "miss": ""},
            {"rps": 6.5, "ttft_s": None, "itl_s": 0.03, "attained": 0.5, "miss": "ITL"},
        ],
    },
    "slo": {"largest_rate_that_meets_it": None, "tried": [{"rps": 6.2, **LOADED}], "table": {}},
    "prefill-groups": {
        "itl_target_s": 0.025, "rows": [{"rps": 3.0, "how": "4 together", "late_tokens": 0.07, **LOADED}],
        "replicas": 2, "capacity_rps": {"on": 12.5, "off": None},
        "left out": "the pick",
    },
    "prefix-cache": {
        "rps": 1.5, "prompt_tokens": 1024, "shared_tokens": 963, "nothing_shared": LOADED, "shared": LOADED,
        "ttft_p50_ratio": 0.4,
    },
    "cold-start": {
        "tideserve": {"graphs": {"first": START, "second": START}},
        "vllm serve": {"graphs": {"first": {"first_token_s": 60.0, "healthy_s": 55.0}}},
    },
    "overhead": {
        "servers": ["bare", "tideserve"],
        "starts": [],
        "measurements": [
            {
                "server": server, "concurrency": 32, "tokens_per_s": 900.0, "ttft_p50_s": 0.05,
                "ttft_p95_s": 0.1, "itl_p50_s": 0.01, "server_cpu_s_per_token": 1e-4,
            }
            for server in ("bare", "tideserve")
        ],
    },
    "quantization": {
        "fp8": {"fit": FIT, "ratios": {"base_s": 0.6}, "first_token_s": 0.1}
    },
    "tensor-parallel": {"2": {"refused": "heads do not divide"}},
    "replay": {
        "knobs": {},
        "replayed_s": 1800.0,
        "rows": [{"window": "on-off", "policy": "ours", "gpu_seconds": 1e4, "attainment": 0.99}],
    },
}  # fmt: skip


GPU = {"device": "gpu", "gpu": "1 x NVIDIA L4", "model": "org/Llama 8B"}
PROFILE = load_profile("l4").model_dump(mode="json") | {"name": "l4", "fit_error": 0.03}


def document(folder: Path, *outcomes: Outcome, **identity: str) -> dict[str, Any]:
    store = Store(folder, IDENTITY | identity)
    store.write_machine({"gpus": []})
    for outcome in outcomes:
        store.keep(outcome)
    return store.write_document(titles())


def proof(folder: Path, **identity: str) -> dict[str, Any]:
    knee = {"rps": 6.2, "bound": "ITL", "ttft_s": 0.1, "itl_s": 0.02}
    measured = MEASURED | {"capacity": MEASURED["capacity"] | {"profile": PROFILE, "knee": knee}}
    return document(folder, *(done(stage, **figures) for stage, figures in measured.items()), **identity)


def test_every_section_says_what_it_was_measured_on_and_when(tmp_path: Path) -> None:
    text, gpu = to_markdown(proof(tmp_path / "cpu")), to_markdown(proof(tmp_path / "gpu", **GPU))
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(titles().values())
    assert text.count("*CPU, NO GPU (a processor), 2026-01-02*") == len(titles())
    assert gpu.count("*1 x NVIDIA L4, 2026-01-02*") == len(titles())
    assert (REHEARSAL in text, REHEARSAL in gpu) == (True, False)


def test_a_stage_that_was_not_measured_says_why(tmp_path: Path) -> None:
    ended = Outcome("tensor-parallel", "cannot", "it takes two GPUs", "2026-01-02T", 0.0, {})
    failed = Outcome("slo", "failed", "nothing answers", "2026-01-02T", 0.0, {})
    text = to_markdown(document(tmp_path, ended, failed))
    assert "Not measured: it takes two GPUs." in text
    assert "Failed: nothing answers." in text
    assert (
        "Not measured yet: model, smoke, eager-start, lost-replica, cold-start, step-time, capacity, " in text
    )


def test_the_page_has_sentences_and_tables_of_the_figures(tmp_path: Path) -> None:
    text = to_markdown(proof(tmp_path))
    for part in (
        "50/150/never ms", "Left out: the pick.", "12.5 requests/s with prefill groups, none without.",
        "2: vLLM refused it: heads do not divide", "One replica serves 6.2 requests/s",
    ):  # fmt: skip
        assert part in text


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "replay" / "profiles").mkdir(parents=True)
    text = "before\n<!-- GPU proofs -->\nold\n<!-- end of GPU proofs -->\nafter\n"
    (tmp_path / "README.md").write_text(text)
    return tmp_path


def test_a_proof_becomes_a_page_figures_a_profile_and_a_row(repository: Path) -> None:
    publish(proof(repository / "proof", **GPU), repository)

    name, folder = "l4-org-llama-8b", repository / "docs/benchmarks/gpu"
    assert load_profile(repository / "replay" / "profiles" / f"{name}.yaml").name == name
    assert (folder / f"{name}.md").read_text() == to_markdown(read_document(folder / f"{name}.json"))
    readme = (repository / "README.md").read_text()
    assert readme.startswith("before\n<!-- GPU proofs -->")
    assert readme.endswith("<!-- end of GPU proofs -->\nafter\n")
    [row] = [line for line in readme.splitlines() if name in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == f"[1 x NVIDIA L4, org/Llama 8B, 2026-01-02](docs/benchmarks/gpu/{name}.md)"
    assert cells[1:] == ["6.2", "100 ms", "20 ms", "21.0 s", "21.0 s"]


def test_a_proof_published_again_replaces_its_own_row(repository: Path) -> None:
    for model in ("org/a", "org/b", "org/a"):
        publish(proof(repository / "proofs" / model, **GPU | {"model": model}), repository)

    readme = (repository / "README.md").read_text()
    assert [readme.count(model) for model in ("org/a", "org/b", "\nold\n")] == [1, 1, 0]


def test_a_rehearsal_and_an_unfinished_proof_are_refused(repository: Path) -> None:
    begun = document(repository / "begun", done("model", **MEASURED["model"]), **GPU)
    for refused, reason in ((proof(repository / "proof"), "a GPU's"), (begun, "no capacity yet")):
        with pytest.raises(RefusedError, match=reason):
            publish(refused, repository)
    assert "old" in (repository / "README.md").read_text()
    assert not list((repository / "replay" / "profiles").iterdir())


def test_a_readme_without_the_comments_is_refused(repository: Path) -> None:
    (repository / "README.md").write_text("nothing")
    with pytest.raises(RefusedError, match=r"README\.md has no <!-- GPU proofs -->"):
        publish(proof(repository / "proof", **GPU), repository)


def test_another_json_file_is_no_proof(tmp_path: Path) -> None:
    (tmp_path / DOCUMENT).write_text("{}")
    with pytest.raises(RefusedError, match="not the document of a proof"):
        read_document(tmp_path / DOCUMENT)
