import re
from typing import Any

import pytest

from benchmarks.gpu_proof.outcome import Outcome
from benchmarks.gpu_proof.page import write_page
from benchmarks.gpu_proof.proof import titles
from benchmarks.gpu_proof.sections import sections
from benchmarks.gpu_proof.store import Store
from tests.benchmarks.gpu_proof.proofs import IDENTITY, done

LAW = {
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
MEASURED: dict[str, dict[str, Any]] = {
    "model": {"model": "m", "title": "random weights", "load_format": "dummy", "parameters": 8_030_261_248},
    "step-time": {
        "law": LAW,
        "samples": [[0.012, 1, 100, 0], [0.05, 4, 900, 512]],
        "shipped": {"name": "a100-80gb", "median_relative_error": 0.5, "median_ratio": 1.5},
        "learned": None,
        "profile": {},
    },
    "capacity": {
        "targets": {"ttft_target_s": 0.2, "itl_target_s": 0.025}, "prompt_tokens": 512, "output_tokens": 128,
        "formula_rps": 5.1, "knee": {"rps": 6.2, "bound": "ITL"}, "fleet_file": "fleet.yaml", "profile": {},
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
        "fp8": {"law": LAW, "ratios": {"base_s": 0.6}, "first_token_s": 0.1, "tensor_cores": True}
    },
    "tensor-parallel": {"2": {"refused": "heads do not divide"}},
    "replay": {
        "knobs": {},
        "replayed_s": 1800.0,
        "rows": [{"window": "on-off", "policy": "ours", "gpu_seconds": 1e4, "attainment": 0.99}],
    },
}  # fmt: skip


def document(folder, outcomes, **identity: str) -> dict[str, Any]:
    store = Store(folder, IDENTITY | identity)
    store.write_machine({"gpus": []})
    for outcome in outcomes:
        store.keep(outcome)
    return store.write_document(titles())


@pytest.fixture
def whole(tmp_path) -> dict[str, Any]:
    return document(tmp_path, [done(stage, **figures) for stage, figures in MEASURED.items()])


def test_every_stage_has_a_section(whole) -> None:
    assert [section.stage for section in sections(whole)] == list(titles())


def test_every_figure_says_what_it_was_measured_on_and_when(whole, tmp_path) -> None:
    for section in sections(whole):
        assert section.when == "CPU, NO GPU (a processor), 2026-01-02"
    gpu = document(tmp_path / "gpu", [done("model", **MEASURED["model"])], device="gpu", gpu="1 x NVIDIA L4")
    assert sections(gpu)[0].when == "1 x NVIDIA L4, 2026-01-02"


def test_a_rehearsal_warns_and_a_proof_does_not(whole, tmp_path) -> None:
    warning = "A rehearsal on a CPU: none of these figures is a GPU's."
    assert warning in write_page(whole, tmp_path).read_text()
    gpu = document(tmp_path / "gpu", [], device="gpu", gpu="1 x NVIDIA L4")
    text = write_page(gpu, tmp_path).read_text()
    assert warning not in text
    assert "Not measured yet: model, step-time" in text


def test_what_could_not_be_measured_is_said(tmp_path) -> None:
    ended = Outcome("tensor-parallel", "cannot", "it takes two GPUs", "2026-01-02T", 0.0, {})
    failed = Outcome("slo", "failed", "nothing answers", "2026-01-02T", 0.0, {})
    found = {section.stage: section.text for section in sections(document(tmp_path, [ended, failed]))}
    assert found == {
        "tensor-parallel": ["Not measured: it takes two GPUs."],
        "slo": ["Failed: nothing answers."],
    }


def test_a_latency_that_never_came_and_a_stage_left_out_in_part_are_said(whole) -> None:
    found = {section.stage: section for section in sections(whole)}
    assert found["slo"].tables[0].rows[0][1:4] == ["50/150/never ms", "50/150/never ms", "-"]
    assert found["prefill-groups"].text[-1] == "Left out: the pick."
    assert found["prefill-groups"].text[1].endswith("12.5 requests/s with prefill groups, none without.")
    assert found["tensor-parallel"].text == ["2: vLLM refused it: heads do not divide"]


def test_the_page_loads_nothing_and_has_its_pictures(whole, tmp_path) -> None:
    text = write_page(whole, tmp_path).read_text()
    assert len(re.findall(r'<img alt="[^"]+" src="data:image/png;base64,', text)) == 4
    assert "default-src 'none'" in text
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_a_model_s_name_cannot_become_markup(tmp_path) -> None:
    found = document(tmp_path, [done("model", title="<script>x</script>")], model="<b>")
    assert "<script>" not in write_page(found, tmp_path).read_text()
