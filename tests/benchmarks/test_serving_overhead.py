import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from benchmarks.serving_overhead.__main__ import parse
from benchmarks.serving_overhead.load import Level, Measured, prompts
from benchmarks.serving_overhead.report import doubts, to_markdown
from benchmarks.serving_overhead.rounds import Results, Started, rotated
from benchmarks.serving_overhead.servers import COLLECTOR, TITLES, TRACED, WATCHED, Engine, Start
from benchmarks.serving_overhead.usage import name_of, read_usage

BARE = Measured(
    server="bare", round=1, concurrency=8, requests=32, tokens_per_s=2000.0, ttft_p50_s=0.020,
    ttft_p95_s=0.030, itl_p50_s=0.002, itl_p95_s=0.003, longest_gap_p95_s=0.010, tokens_per_arrival=1.0,
    server_cpu_s_per_token=0.0006,
    cpu_s_per_token={"engine-core": 0.0004, "vLLM's own front end": 0.0002, "resource tracker": 1e-8},
    client_cores=0.05, client_wait=0.001, other_cores=0.02,
)  # fmt: skip
OURS = replace(
    BARE, server="tideserve", tokens_per_s=1800.0,
    cpu_s_per_token={"engine-core": 0.00041, "engine-replica": 0.00015, "raylet": 4e-7, "dashboard": 8e-7},
)  # fmt: skip
STARTS = tuple(Started(server, 20.0, 0.1, 2 << 30) for server in ("bare", "tideserve"))
ROUNDS = (
    BARE, OURS, replace(OURS, tokens_per_s=800.0, round=2), replace(BARE, tokens_per_s=1000.0, round=2),
)  # fmt: skip


def cells(text: str, first: str) -> list[list[str]]:
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()]
    return [line[1:] for line in lines if line[0] == first]


def test_medians_have_ratios_round_by_round_whatever_the_order() -> None:
    text = to_markdown(Results(STARTS, ROUNDS), {"Settings": {"rounds": "2"}})
    assert cells(text, "Tideserve")[0][0] == "1,300; 800-1,800"
    assert cells(text, "ratio of Tideserve")[0][0] == "0.85; 0.80-0.90"
    assert cells(text, "bare vLLM")[0][0] == "1,500; 1,000-2,000"
    assert "Settings: rounds 2" in text
    assert "Doubtful" not in text


def test_a_base_of_zero_has_no_ratio() -> None:
    nothing = Results(STARTS, (replace(BARE, itl_p50_s=0.0), OURS))
    assert cells(to_markdown(nothing, {}), "ratio of Tideserve")[0][3] == "-"


def test_each_process_has_its_cost_of_a_token() -> None:
    text = to_markdown(Results(STARTS, (BARE, OURS)), {})
    found = [cells(text, name) for name in ("engine-core", "engine-replica", "others")]
    assert found == [[["400", "410"]], [["0", "150"]], [["0", "1"]]]


def test_a_busy_client_or_machine_makes_a_measurement_doubtful() -> None:
    found = doubts(Results(STARTS, (replace(BARE, client_cores=0.6, client_wait=0.1, other_cores=0.3),)))
    assert len(found) == 3
    assert all("round 1, bare vLLM, 8 at once" in doubt for doubt in found)


def test_every_server_goes_first_in_turn() -> None:
    assert [rotated(["a", "b", "c"], by)[0] for by in range(4)] == ["a", "b", "c", "a"]


def test_prompts_never_repeat_or_share_a_prefix() -> None:
    source = prompts(98)
    assert len({next(source).partition(":")[0] for _ in range(100)}) == 100


def test_a_command_line_becomes_a_plan() -> None:
    plan, _ = parse(["--concurrency", "1,8", "--requests", "4", "--device", "gpu", "--model", "org/small"])
    assert plan.servers == [name for name in TITLES if name not in (TRACED, WATCHED)]
    assert plan.levels == [Level(1, 4, 4), Level(8, 4, 4)]
    assert (plan.engine.device, plan.engine.model) == ("gpu", "org/small")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--servers", "bare,other"], "--servers: 'other' must be one of bare,"),
        (["--servers", "bare,bare"], "--servers: 'bare' must be one of"),
        (["--servers", "tideserve,traced"], f"traced needs {COLLECTOR}"),
        (["--concurrency", "1,x"], "--concurrency: '1,x' is not a list of whole numbers"),
        (["--requests", "1,2"], "--requests: one number, or one for each"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--model", "/nowhere"], "--model: /nowhere is neither a folder nor"),
    ],
)
def test_a_wrong_command_line_is_refused(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(COLLECTOR, raising=False)
    with pytest.raises(SystemExit):
        parse(argv)
    assert sentence in capsys.readouterr().err


def test_every_server_gets_the_same_engine_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LEFT_OUT", "1")
    engine = Engine("org/small", max_num_seqs=7)
    starts = {name: Start(name, engine, tmp_path) for name in TITLES}
    for name in ("bare", "bare-uniproc", "ray-llm", "ray-llm-direct"):
        command = starts[name].command(8000)
        at = command.index("--model")
        assert command[at : at + len(engine.cli())] == engine.cli()
    (model,) = engine.tideserve_config()["applications"][0]["args"]["models"]
    assert (model["max_num_seqs"], model["kv_cache_memory_bytes"]) == (7, 1 << 30)
    assert all("VLLM_LEFT_OUT" not in start.environment() for start in starts.values())
    assert starts["bare-uniproc"].environment()["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("ray::ServeController", "controller"),
        ("ray::IDLE", "spare processes"),
        ("VLLM::Worker_TP0", "vLLM's worker"),
        ("ray-dashboard-ServeHead-0 (/x/bin/python -B -c ...)", "dashboard modules"),
        ("/x/bin/python -m vllm.entrypoints.openai.api_server --port 1", "vLLM's own front end"),
        ("sleep 1", "other"),
        ("/x/bin/python -m benchmarks.common.supervise 1 /x/bin/python -m serve_app.cli.main run x", None),
    ],
)
def test_every_process_of_an_application_has_a_name(title: str, name: str | None) -> None:
    assert name_of(title.split(" ")) == name


def test_usage_counts_processes_and_their_ended_children() -> None:
    gone = psutil.Popen(["true"])
    gone.wait()
    ourselves = psutil.Process(os.getpid())
    before = read_usage([ourselves, gone])
    subprocess.run([sys.executable, "-c", "for _ in range(10**6): pass"], check=True)

    used = read_usage([ourselves, gone], memory=True).since(before)

    assert used.total_s >= 0.01  # a million turns of a loop take more
    assert json.loads(json.dumps(asdict(used)))["pss_bytes"]["other"] > 1 << 20
