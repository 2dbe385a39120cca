from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from serve_app.autoscaling.knobs import Knobs
from serve_app.capacity import measure
from serve_app.capacity.measure import Progress
from serve_app.cli import capacity
from serve_app.cli.capacity import Display
from serve_app.cli.main import main
from serve_app.replay.profile_files import load_profile
from tests.capacity.fake_application import LAW, FakeApplication, running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second-long intervals in milliseconds: the fake reports with every scrape."""
    monkeypatch.setattr(measure, "_SCRAPE_S", 0.01)
    monkeypatch.setattr(measure, "_LAG_S", 0.03)
    monkeypatch.setattr(measure, "_SETUP_S", 0.05)
    monkeypatch.setattr(capacity, "_BOUNDS_S", (0.1, 3600.0))


def run(app: FakeApplication, out: Path, *more: str) -> int:
    with running(app) as url:
        return main(["capacity", "--url", url, "--out", str(out), "--duration", "0.8", *more])


def failure(app: FakeApplication, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert run(app, out, *more) == 1
    assert not out.exists()
    return capsys.readouterr().err.splitlines()[-1]


def test_the_law_of_the_replica_is_found_told_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = FakeApplication(cold={"cold_start_s": 20.0, "phases_s": {"imports": 5.0, "warm_up": 15.0}})
    out = tmp_path / "mine.yaml"

    assert run(app, out, "--gpu", "X1", "--gpus", "2", "--price", "1.5") == 0

    profile = load_profile(out)
    for name in ("base_s", "per_sequence_s", "per_kv_token_s", "per_prefill_token_s"):
        assert getattr(profile.step, name) == pytest.approx(getattr(LAW, name), rel=0.01), name
    assert (profile.name, profile.gpu, profile.gpus, profile.price_per_gpu_hour) == ("mine", "X1", 2, 1.5)
    assert (profile.kv_cache_tokens, profile.max_num_seqs, profile.max_num_batched_tokens) == (
        131_072,
        64,
        2048,
    )
    assert profile.cold_start_s == (22.0, 24.0)
    printed = capsys.readouterr()
    assert "a step                    4 ms" in printed.out
    assert "requests/s of 512 + 128 tokens" in printed.out
    assert f"{out}: written" in printed.out
    assert "load 1/" in printed.err


def test_requests_have_the_lengths_of_the_sweep_and_run_to_their_end(tmp_path: Path) -> None:
    app = FakeApplication()

    assert run(app, tmp_path / "mine.yaml", "--duration", "1.5") == 0

    assert {len(body["prompt"]) for body in app.bodies} == {32, 248, 1920}
    assert {body["max_tokens"] for body in app.bodies} == {4, 128}
    assert all(body["ignore_eos"] and body["stream"] for body in app.bodies)
    assert all(3 <= token < 93 for token in app.bodies[0]["prompt"])
    assert app.left_open == 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"replicas": 2, "target_replicas": 2}, "tideserve: tide has 2 ready replicas and 2 running or on"),
        ({"replicas": 0}, "tideserve: tide has 0 ready replicas and 1 running or on their way, imports"),
        (
            {"knobs": Knobs(max_replicas=4).model_dump(mode="json")},
            "tideserve: max_replicas of tide is 4, and the load would start more replicas; pin one:",
        ),
        ({"busy": 3.0}, "tideserve: tide has 3 requests under way; measure it without other traffic"),
        ({"others": 1}, "requests of others reached tide meanwhile; measure it without other traffic"),
        ({"second_replica": True}, "tideserve: another replica of tide took steps meanwhile: engine-2"),
        ({"limits": False}, "tideserve: tide does not tell llm_max_num_seqs at /metrics"),
        ({"silent": True}, "tideserve: tide reported no engine steps in 1 s of load"),
        ({"refusal": (429, b"full")}, " answers 429: full"),
        (
            {"refusal": (200, b'event: error\ndata: {"error":{}}\n\ndata: [DONE]\n\n')},
            "failed: event: error",
        ),
        ({"refusal": (200, b'data: {"choices"')}, 'failed: data: {"choices"'),
    ],
)
def test_what_would_spoil_the_measurement_ends_it_and_nothing_is_written(
    wrong: dict[str, Any], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in failure(FakeApplication(**wrong), tmp_path / "mine.yaml", capsys)


def test_a_replica_that_starts_meanwhile_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = FakeApplication()

    def scale(requests: int) -> None:
        app.target_replicas = 2

    app.on_request = scale

    assert "tide has 1 ready replicas and 2 running" in failure(app, tmp_path / "mine.yaml", capsys)


def test_an_unknown_model_is_told_with_those_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = failure(FakeApplication(), tmp_path / "mine.yaml", capsys, "--model", "ebb")

    assert told == "tideserve: --model = 'ebb': not one of tide"


def test_ctrl_c_closes_the_streams_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = FakeApplication(endless=True)
    app.on_request = lambda requests: os.kill(os.getpid(), signal.SIGINT) if requests == 1 else None

    told = failure(app, tmp_path / "mine.yaml", capsys, "--duration", "600")

    assert told == "tideserve: interrupted; its streams are closed, and nothing was written"
    assert app.left_open == 0


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--url", "localhost:8000"], "--url = 'localhost:8000': must be an http(s) URL"),
        (["--duration", "0.01"], "--duration = 0.01: must be from 0.1 to 3600 seconds"),
        (["--price", "-1"], "--price = -1: must be at least 0 and finite"),
        (["--gpus", "0"], "--gpus = 0: must be from 1 to 64"),
        (["--max-num-seqs", "9999"], "--max-num-seqs = 9999: must be from 1 to 4096"),
        (["--out", "fleet.txt"], "--out = fleet.txt: must end in .yaml"),
        (["--out", "nowhere/fleet.yaml"], "--out = nowhere/fleet.yaml: nowhere is no folder"),
    ],
)
def test_options_that_make_no_sense_are_told_before_anything_runs(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capacity", *argv]) == 1

    assert told in capsys.readouterr().err


def test_a_file_is_overwritten_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.yaml"
    out.write_text("precious")

    assert main(["capacity", "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"tideserve: --out = {out}: exists; --force overwrites it\n"
    assert run(FakeApplication(replicas=2), out, "--force") == 1
    assert "tide has 2 ready replicas" in capsys.readouterr().err
    assert out.read_text() == "precious"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_written_over_and_a_file_a_line_a_load() -> None:
    course = [Progress(1, 2, "x", 0, 9.0), Progress(1, 2, "x", 1, 8.0), Progress(2, 2, "y", 2, 7.0)]
    screen, file = Terminal(), io.StringIO()
    for stream in (screen, file):
        display = Display(stream)
        for progress in course:
            display.tell(progress)
        display.end()

    assert screen.getvalue().count("\n") == 1
    assert screen.getvalue().endswith("\r\x1b[Kload 2/2: y; 2 samples, 7 s left\n")
    assert file.getvalue() == "load 1/2: x\nload 2/2: y\n"
