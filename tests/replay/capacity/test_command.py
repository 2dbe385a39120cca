import argparse
import os
import signal
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from replay.capacity.command import add_command, measure_and_write
from replay.capacity.method import Method
from replay.profile import load_profile, load_starting_values
from serve_app import env
from serve_app.cli import CommandError
from serve_app.cli.main import main
from serve_app.settings.knobs import Knobs
from tests.replay.capacity.fake_application import LAW, FakeApplication, runs

QUICK = Method(
    scrape_s=0.01,
    report_lag_s=0.03,
    setup_s=0.05,
    fewest_requests=2,
    longest_factor=1.0,
    lead_s=0.05,
    least_grace_s=60.0,
    client_lag_s=60.0,
    most_growths=1,
    most_halvings=1,
    resolution=2.0,
)
"""The fake reports with every scrape. At most four rates, however busy the machine is."""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.API_KEY, "sk-tide")


def look(app: FakeApplication, out: Path, *more: str) -> int:
    """Measure with rates of a third of a second."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port: int = free.getsockname()[1]
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    url = f"http://127.0.0.1:{port}"
    argv = ["--url", url, "--out", str(out), "--duration", "0.8", "--step-seconds", "0.3", *more]
    try:
        return measure_and_write(parser.parse_args(["capacity", *argv]), QUICK, runs(app, port))
    except CommandError as error:
        print(f"tideserve: {error}", file=sys.stderr)
        return 1


def run(app: FakeApplication, out: Path, *more: str) -> int:
    return look(app, out, "--no-knee", *more)


def failure(app: FakeApplication, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert run(app, out, *more) == 1
    assert not out.exists()
    return capsys.readouterr().err.splitlines()[-1]


def test_step_time_is_measured_printed_and_written(
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
        16,
        2048,
    )
    assert profile.cold_start_s == (22.0, 24.0)
    printed = capsys.readouterr()
    assert "a step                    4 ms" in printed.out
    assert "requests/s of 512 + 128 tokens" in printed.out
    assert f"{out}: written" in printed.out
    assert "load 1/" in printed.err
    # The requests have the lengths of the sweep and run to their end.
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
        ({"others": 1}, "requests of other clients reached tide meanwhile; measure it without other traffic"),
        ({"second_replica": True}, "tideserve: another replica of tide took steps meanwhile: engine-2"),
        ({"limits": False}, "tideserve: tide does not report llm_max_num_seqs at /metrics"),
        ({"silent": True}, "tideserve: tide reported no engine steps in 1 s of load"),
        ({"refusal": (429, b"full")}, " answers 429: full"),
        ({"refusal": (200, b'event: error\ndata: {"error":{}}\n\ndata: [DONE]\n\n')}, "failed: event: error"),
        ({"refusal": (200, b'data: {"choices"')}, 'failed: data: {"choices"'),
    ],
)
def test_spoiled_measurement_writes_nothing(
    wrong: dict[str, Any], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in failure(FakeApplication(**wrong), tmp_path / "mine.yaml", capsys)


def test_measurement_needs_the_api_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(env.API_KEY)

    assert "/v1/models answers 401" in failure(FakeApplication(), tmp_path / "mine.yaml", capsys)


def test_ctrl_c_closes_the_streams_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = FakeApplication(endless=True)
    app.on_request = lambda requests: os.kill(os.getpid(), signal.SIGINT) if requests == 1 else None

    told = failure(app, tmp_path / "mine.yaml", capsys, "--duration", "600")

    assert told == "tideserve: interrupted; its streams are closed, and nothing was written"
    assert app.left_open == 0


def test_the_knee_is_written_with_the_starting_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app, out = FakeApplication(), tmp_path / "mine.yaml"

    assert look(app, out, "--prompt-tokens", "4000", "--output-tokens", "1000") == 0

    found = load_profile(out).knee
    assert found is not None
    assert (found.prompt_tokens, found.output_tokens, found.percentile) == (1536, 512, 95)
    assert any(rate == pytest.approx(found.formula_rps / 2, rel=0.01) for rate, *_ in found.curve)
    assert "1536 + 512 tokens, cut from 4000 + 1000 to what fits" in load_profile(out).source
    sent = [body["prompt"] for body in app.bodies if body["max_tokens"] == 512]
    assert {len(prompt) for prompt in sent} == {1536}
    assert len({tuple(prompt[:16]) for prompt in sent}) == len(sent)
    printed = capsys.readouterr()
    assert "Open loop: Poisson arrivals of 1536 + 512 tokens, with P95 TTFT within 200 ms" in printed.out
    assert "rate 1: " in printed.err
    block = printed.out.split("Ingress:\n\n")[1].split("\n\n")[0]
    values = yaml.safe_load(block)["autoscaling"]["tide"]["starting_values"]
    assert values == load_starting_values(out)
    assert "cold_start_s" not in values  # none has been measured
    assert f"tideserve knobs set tide starting_values=@{out}" in printed.out
    assert app.left_open == 0


def test_targets_out_of_reach_leave_the_file_without_a_knee(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = Knobs(ttft_target_s=0.001, itl_target_s=0.001).model_dump(mode="json")
    out = tmp_path / "mine.yaml"

    assert look(FakeApplication(knobs=strict), out) == 0

    assert load_profile(out).knee is None
    assert "No knee: an empty replica misses both targets" in capsys.readouterr().out


@pytest.mark.parametrize("interrupts", [True, False], ids=["Ctrl-C", "failure"])
def test_an_interrupted_search_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], interrupts: bool
) -> None:
    app, out = FakeApplication(), tmp_path / "mine.yaml"

    def disturb(requests: int) -> None:
        if len(app.bodies[-1]["prompt"]) != 512 or app.endless or app.refusal:
            return
        if interrupts:
            app.endless = True
            os.kill(os.getpid(), signal.SIGINT)
        else:
            app.refusal = (500, b"{}")

    app.on_request = disturb

    assert look(app, out) == 1

    assert not out.exists()
    last = capsys.readouterr().err.splitlines()[-1]
    if interrupts:
        assert last == "tideserve: interrupted; its streams are closed, and nothing was written"
    else:
        assert "a second failed with status 500: HTTP 500" in last
    assert app.left_open == 0


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--step-seconds", "1"], "--step-seconds = 1: must be from 5 to 600 seconds"),
        (["--prompt-tokens", "0"], "--prompt-tokens = 0: must be from 1 to 1000000"),
        (["--output-tokens", "2000000"], "--output-tokens = 2000000: must be from 1 to 1000000"),
        (["--url", "localhost:8000"], "--url = 'localhost:8000': must be an http(s) URL"),
        (["--duration", "0.01"], "--duration = 0.01: must be from 20 to 3600 seconds"),
        (["--price", "-1"], "--price = -1: must be at least 0 and finite"),
        (["--gpus", "0"], "--gpus = 0: must be from 1 to 64"),
        (["--max-num-seqs", "9999"], "--max-num-seqs = 9999: must be from 1 to 4096"),
        (["--out", "fleet.txt"], "--out = fleet.txt: must end in .yaml"),
        (["--out", "nowhere/fleet.yaml"], "--out = nowhere/fleet.yaml: nowhere is not a folder"),
    ],
)
def test_wrong_options_are_refused_before_a_load(
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


def test_another_replica_ends_the_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = FakeApplication()
    app.on_request = lambda requests: setattr(app, "target_replicas", 2)

    assert "tide has 1 ready replicas and 2 running" in failure(app, tmp_path / "mine.yaml", capsys)
