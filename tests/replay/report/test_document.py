import json
from dataclasses import replace

import numpy as np
import pytest

from replay.report.document import document
from tests.replay.report import samples

TOP_LEVEL = {"policy", "attainment", "ttft_ok", "gpu_seconds", "requests", "oracle_ratio"}
BESIDE = {
    "attainment_warm", "ttft_ok_warm", "infeasible", "ttft", "itl", "e2e", "gpu_seconds_by_state", "dollars",
    "starts", "failed_starts", "peak", "changes", "preemptions", "rejected", "windows", "timeline",
    "decisions", "peers", "versions", "seed", "knobs", "trace", "profile",
}  # fmt: skip


@pytest.fixture(scope="module")
def results() -> list[samples.Result]:
    return samples.realistic()


def test_the_headline_is_at_the_top_level_and_everything_else_is_beside_it(
    results: list[samples.Result],
) -> None:
    found = document(results[0])

    assert found.keys() >= TOP_LEVEL | BESIDE
    assert found["gpu_seconds"] == pytest.approx(results[0].gpu_seconds.total, abs=0.01)
    assert sum(found["gpu_seconds_by_state"].values()) == pytest.approx(found["gpu_seconds"], abs=0.01)
    assert 0 <= found["attainment"] <= 1
    assert found["oracle_ratio"] == pytest.approx(1.25)
    assert found["ttft"].keys() == {"all", "warm", "cold"}
    assert found["ttft"]["cold"].keys() == {"count", "mean_s", "p50_s", "p90_s", "p95_s", "p99_s"}


def test_a_peer_says_what_this_result_costs_in_relation_to_it(results: list[samples.Result]) -> None:
    found = document(results[0])

    peer = found["peers"]["static:16"]
    assert peer["attainment"] == 1
    assert peer["ratio"] == pytest.approx(found["gpu_seconds"] / 172_800, rel=1e-4)


def test_it_is_valid_json_whatever_is_not_a_number(results: list[samples.Result]) -> None:
    hostile = replace(
        results[0],
        attainment=float("nan"),
        oracle_gpu_seconds=None,
        decisions=[{"at": 1e6 + 0.125, "signals": {"p95": float("inf")}, "new_target": np.int64(3)}],
        knobs={"share": np.float64("nan")},
    )

    found = json.loads(json.dumps(document(hostile), allow_nan=False))

    assert found["attainment"] is None
    assert found["oracle_ratio"] is None
    assert found["decisions"] == [{"at": 1000000.125, "signals": {"p95": None}, "new_target": 3}]
    assert found["knobs"] == {"share": None}


def test_an_empty_replay_has_the_same_keys(results: list[samples.Result]) -> None:
    found = json.loads(json.dumps(document(samples.empty()), allow_nan=False))

    assert found.keys() == document(results[0]).keys()
    assert found["requests"] == 0
    assert found["timeline"]["at_s"] == []
    assert found["ttft"]["all"]["p95_s"] is None


def test_times_of_a_long_timeline_keep_their_half_seconds() -> None:
    result = samples.realistic(hours=0.2)[0]
    line = replace(result.timeline, at_s=result.timeline.at_s + 123_456.5)

    assert document(replace(result, timeline=line))["timeline"]["at_s"][1] == 123_461.5
