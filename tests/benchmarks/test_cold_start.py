import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cold_start.__main__ import parse, plan
from benchmarks.cold_start.measure import Answer, Case, Measured, first_answers, with_waits
from benchmarks.cold_start.report import to_markdown
from benchmarks.serving_overhead.servers import Engine
from tests.benchmarks.test_serving_overhead import cells

OURS = Measured(
    "tideserve", 1, 1, first_token_s=1.0, all_answered_s=1.0, up_s=9.0,
    cpu_s={"engine-core": 0.5, "gcs": 0.01},
    pss_bytes={"engine-core": 1 << 30, "gcs": 1 << 20}, other_cores=0.0, phases_s={"process": 0.5},
)  # fmt: skip
VLLM = replace(OURS, system="vllm", first_token_s=20.0, all_answered_s=20.0, up_s=None, phases_s={})


def test_totals_have_medians_spreads_and_ratios_round_by_round() -> None:
    second = [replace(VLLM, first_token_s=30.0, round=2), replace(OURS, first_token_s=3.0, round=2)]
    text = to_markdown([OURS, VLLM, *second], {})
    assert cells(text, "Tideserve, from zero")[0][:2] == ["2", "2.00; 1.00-3.00"]
    assert cells(text, "vllm serve")[0][:2] == ["2", "25.00; 20.00-30.00"]
    assert cells(text, "ratio of vllm serve")[0][1] == "15.00; 10.00-20.00"
    assert cells(text, "vllm serve")[0][-1] == "-"
    assert cells(text, "process") == [["0.50"]]
    assert "Doubtful" not in text


def test_a_start_beside_others_is_doubtful() -> None:
    assert "others on this machine used 0.40 cores" in to_markdown([replace(OURS, other_cores=0.4)], {})


def test_phases_and_waits_add_up_to_the_first_token() -> None:
    found = with_waits({"process": 0.25, "warm_up": 0.5}, 0.125, 1.0)
    assert list(found.values()) == [0.125, 0.25, 0.5, 0.125]


def test_each_replica_has_its_first_answer_from_the_request_logs(tmp_path: Path) -> None:
    def line(arrived: float, ttft: float | None) -> str:
        return json.dumps({"arrived_at": arrived, "ttft_s": ttft}) + "\n"

    (tmp_path / "requests.tide.1.a.jsonl").write_text(line(5.0, None) + line(6.0, 2.0) + line(7.0, 0.5))
    (tmp_path / "requests.tide.1.b.jsonl").write_text(line(5.0, 4.0) + '{"arrived_at": 1')
    assert first_answers(tmp_path) == {"a": Answer(7.0, 7.5), "b": Answer(5.0, 9.0)}


def test_replicas_share_the_cores_and_the_burst(tmp_path: Path) -> None:
    case = Case("no-zygote", Engine("org/small"), 3, 24, tmp_path, tmp_path)
    (application,) = case.configuration()["applications"]
    assert application["args"]["zygote"] is False
    assert 0.1 <= application["args"]["models"][0]["cpus_per_replica"] <= 1.0
    (knobs,) = application["deployments"][0]["user_config"]["autoscaling"].values()
    assert (knobs["min_replicas"], knobs["max_replicas"], knobs["queue_target_per_replica"]) == (0, 3, 8)


def test_systems_alternate_and_each_goes_first() -> None:
    assert list(plan(["a", "b"], [1, 3], 2))[:5] == [
        ("a", 1, 1), ("b", 1, 1), ("b", 1, 2), ("a", 1, 2), ("a", 3, 1),
    ]  # fmt: skip


def test_fresh_is_short_for_two_systems() -> None:
    assert parse(["--fresh"]).systems == ["fresh", "vllm"]
    assert parse([]).systems == ["tideserve", "vllm"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--systems", "other"], "--systems: 'other' must be one of tideserve,"),
        (["--rounds", "0"], "--rounds = 0: must be at least 1"),
        (["--burst", "2"], "--burst: 2 requests cannot be answered by 3 replicas"),
    ],
)
def test_a_wrong_command_line_is_refused(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(argv)
    assert sentence in capsys.readouterr().err
