import os
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from replay.capacity import command as capacity
from replay.capacity import knee, measure, observer, open_loop
from replay.profile_files import load_profile, load_starting_values
from serve_app import env
from serve_app.cli.main import main
from serve_app.settings.knobs import Knobs
from tests.replay.capacity.fake_application import LAW, FakeApplication, runs


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second-long intervals in milliseconds: the fake reports with every scrape."""
    monkeypatch.setenv(env.API_KEY, "sk-tide")
    monkeypatch.setattr(observer, "SCRAPE_S", 0.01)
    monkeypatch.setattr(observer, "LAG_S", 0.03)
    monkeypatch.setattr(measure, "_POLL_S", 0.01)
    monkeypatch.setattr(measure, "_SETUP_S", 0.05)
    monkeypatch.setattr(capacity, "_BOUNDS_S", (0.1, 3600.0))


def command(app: FakeApplication, out: Path, *more: str) -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port: int = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "asyncio", SimpleNamespace(run=runs(app, port)))
        argv = ["capacity", "--url", f"http://127.0.0.1:{port}", "--out", str(out), "--duration", "0.8"]
        return main([*argv, *more])


def run(app: FakeApplication, out: Path, *more: str) -> int:
    return command(app, out, "--no-knee", *more)


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


def test_without_the_key_of_the_server_nothing_is_measured(
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


# The knee.


def look(app: FakeApplication, out: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    """With rates of a third of a second, and no more than four of them, however busy the machine is."""
    monkeypatch.setattr(capacity, "_STEP_BOUNDS_S", (0.1, 600.0))
    monkeypatch.setattr(knee, "_FEWEST", 2)
    monkeypatch.setattr(knee, "_LAG_S", 60.0)  # a busy machine is no concern of these tests
    monkeypatch.setattr(knee, "_LONGEST", 1.0)
    monkeypatch.setattr(knee, "_MOST_GROWTHS", 1)
    monkeypatch.setattr(knee, "_MOST_HALVINGS", 1)
    monkeypatch.setattr(knee, "_RESOLUTION", 2.0)
    monkeypatch.setattr(open_loop, "_LEAD_S", 0.05)
    monkeypatch.setattr(open_loop, "_LEAST_GRACE_S", 1.0)
    return command(app, out, "--step-seconds", "0.3", *more)


def test_a_knee_is_looked_for_told_drawn_and_written_with_what_the_policy_begins_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, out, picture = FakeApplication(), tmp_path / "mine.yaml", tmp_path / "knee.png"

    assert look(app, out, monkeypatch, "--png", str(picture)) == 0

    found = load_profile(out).knee
    assert found is not None
    assert (found.prompt_tokens, found.output_tokens, found.percentile) == (512, 128, 95)
    assert any(rate == pytest.approx(found.formula_rps / 2, rel=0.01) for rate, *_ in found.curve)
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr()
    assert "Open loop: Poisson arrivals of 512 + 128 tokens, with P95 TTFT within 200 ms" in printed.out
    assert "rate 1: " in printed.err
    block = printed.out.split("Ingress:\n\n")[1].split("\n\n")[0]
    values = yaml.safe_load(block)["autoscaling"]["tide"]["starting_values"]
    assert values == load_starting_values(out)
    assert "cold_start_s" not in values  # none has been measured
    assert f"tideserve knobs set tide starting_values=@{out}" in printed.out
    assert app.left_open == 0


def test_the_knees_requests_are_never_alike_and_cut_to_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, out = FakeApplication(), tmp_path / "mine.yaml"

    assert look(app, out, monkeypatch, "--prompt-tokens", "4000", "--output-tokens", "1000") == 0

    sent = [body["prompt"] for body in app.bodies if body["max_tokens"] == 512]
    assert {len(prompt) for prompt in sent} == {1536}
    assert len({tuple(prompt[:16]) for prompt in sent}) == len(sent)
    assert "1536 + 512 tokens, cut from 4000 + 1000 to what fits" in load_profile(out).source


def test_targets_out_of_reach_leave_the_file_without_a_knee(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = Knobs(ttft_target_s=0.001, itl_target_s=0.001).model_dump(mode="json")
    out = tmp_path / "mine.yaml"

    assert look(FakeApplication(knobs=strict), out, monkeypatch) == 0

    assert load_profile(out).knee is None
    assert "No knee: an empty replica misses both targets" in capsys.readouterr().out


def when_looking(app: FakeApplication, do: Callable[[], None]) -> None:
    """Have `do` called with the first request that looks for the knee."""

    def on_request(requests: int) -> None:
        if len(app.bodies[-1]["prompt"]) == 512:
            do()

    app.on_request = on_request


def test_a_request_that_fails_on_the_way_to_the_knee_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, out = FakeApplication(), tmp_path / "mine.yaml"
    when_looking(app, lambda: setattr(app, "refusal", (500, b"{}")))

    assert look(app, out, monkeypatch) == 1

    assert not out.exists()
    last = capsys.readouterr().err.splitlines()[-1]
    assert "a second failed with status 500: HTTP 500" in last


def test_ctrl_c_on_the_way_to_the_knee_closes_the_streams_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, out = FakeApplication(), tmp_path / "mine.yaml"

    def interrupt() -> None:
        if not app.endless:
            app.endless = True
            os.kill(os.getpid(), signal.SIGINT)

    when_looking(app, interrupt)

    assert look(app, out, monkeypatch) == 1

    assert not out.exists()
    assert capsys.readouterr().err.splitlines()[-1] == (
        "tideserve: interrupted; its streams are closed, and nothing was written"
    )
    assert app.left_open == 0


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--step-seconds", "1"], "--step-seconds = 1: must be from 5 to 600 seconds"),
        (["--prompt-tokens", "0"], "--prompt-tokens = 0: must be from 1 to 1000000"),
        (["--output-tokens", "2000000"], "--output-tokens = 2000000: must be from 1 to 1000000"),
        (["--png", "knee.svg"], "--png = knee.svg: must end in .png"),
        (["--png", "a.png", "--no-knee"], "--png = a.png: there is no curve to draw with --no-knee"),
        (["--png", "nowhere/a.png"], "--png = nowhere/a.png: nowhere is not a folder"),
        (["--url", "localhost:8000"], "--url = 'localhost:8000': must be an http(s) URL"),
        (["--duration", "0.01"], "--duration = 0.01: must be from 0.1 to 3600 seconds"),
        (["--price", "-1"], "--price = -1: must be at least 0 and finite"),
        (["--gpus", "0"], "--gpus = 0: must be from 1 to 64"),
        (["--max-num-seqs", "9999"], "--max-num-seqs = 9999: must be from 1 to 4096"),
        (["--out", "fleet.txt"], "--out = fleet.txt: must end in .yaml"),
        (["--out", "nowhere/fleet.yaml"], "--out = nowhere/fleet.yaml: nowhere is not a folder"),
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
