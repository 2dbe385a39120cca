"""`tideserve loadtest`, against a server whose delays are known."""

import errno
import gzip
import json
import os
import signal
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from loadtests import command as loadtest
from loadtests import runner
from serve_app.cli.main import main
from tests.loadtests.client.driving import Stub

TWENTY = {"shape": "steady", "for_s": 1, "rate": 20, "spacing": "even"}
LENIENT = {"ttft_ms": {"p95": 5000}, "itl_ms": None, "hundred_tokens_s": None}
PATIENT = {"lag_p99_ms": 5000, "lag_max_ms": 5000}


def scenario(folder: Path, *arrivals: dict[str, Any], **more: Any) -> Path:
    document = {
        "name": "twenty",
        "arrivals": list(arrivals or (TWENTY,)),
        "requests": [{"kind": "a", "output_tokens": 5}],
        "slos": LENIENT,
        "client": PATIENT,
        **more,
    }
    path = folder / "twenty.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(autouse=True)
def begun_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of short prompts is drawn in no time."""
    monkeypatch.setattr(runner, "_LEAD_S", 0.2)


def run(path: Path, stub: Stub, out: Path, *more: str) -> int:
    return main(["loadtest", str(path), "--url", stub.url, "--out", str(out), *more])


def test_a_run_that_keeps_its_bounds_passes_and_leaves_a_report(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    assert run(scenario(tmp_path), stub, out) == 0

    told = capsys.readouterr()
    assert told.out.startswith("Passed: ")
    assert "twenty: 20 requests in 1 s to http://127.0.0.1:" in told.err
    document = json.loads((out / "run.json").read_text())
    assert len(document["requests"]) == 20
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert {path.name for path in out.iterdir()} == {"run.json", "report.html"}
    # What was written is judged again as it was.
    assert main(["loadtest", "report", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == told.out.splitlines()[0]
    (out / "run.json.gz").write_bytes(gzip.compress((out / "run.json").read_bytes()))
    (out / "run.json.bak").write_text("no run")
    assert main(["loadtest", "compare", str(out / "run.json"), str(out)]) == 0
    assert "within the noise" in capsys.readouterr().out


def test_an_overloaded_client_declares_its_run_invalid(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,000 requests in an instant: one process starts some 75 in 10 ms."""
    burst = {"shape": "burst", "for_s": 1, "requests": 1000}
    path = scenario(tmp_path, burst, client={}, requests=[{"kind": "a", "output_tokens": 1}])

    assert run(path, stub, tmp_path / "out") == 4

    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("Invalid, so it is not judged: the client lagged")
    assert "more than client.lag_p99_ms = 10" in told


def test_a_scaling_scenario_needs_reported_replicas(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario(tmp_path, scaling={"starts_at": 0, "within_s": 1})

    assert run(path, stub, tmp_path / "out") == 4

    assert "does not report the replicas of stub at /ready" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "out" / "run.json").read_text())["requests"] == []


def test_a_closed_loop_keeps_its_time_and_missed_bounds_fail(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slos = {**LENIENT, "ttft_ms": {"p50": 20}}
    path = scenario(tmp_path, arrivals=[], closed={"streams": 3, "for_s": 5}, slos=slos)

    assert run(path, stub, tmp_path / "out") == 3

    assert "Failed: 1 of" in capsys.readouterr().out
    requests = json.loads((tmp_path / "out" / "run.json").read_text())["requests"]
    assert 1 <= len(requests) <= 84  # 180 ms each, three at a time


def test_an_interrupted_run_closes_its_streams_and_is_invalid(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steady = {"shape": "steady", "for_s": 60, "rate": 10}
    kinds = [{"kind": "long", "output_tokens": 2000}, {"kind": "short", "output_tokens": 2}]
    path = scenario(tmp_path, steady, requests=kinds)
    served = len(stub.log.read_text().splitlines())

    def interrupt() -> None:
        stub.wait_for(served + 4)  # short ones: long ones are open by then
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=interrupt)
    thread.start()

    assert run(path, stub, tmp_path / "out") == 4

    thread.join()
    assert "it was interrupted" in " ".join(capsys.readouterr().out.split())
    requests = json.loads((tmp_path / "out" / "run.json").read_text())["requests"]
    assert {"long", "short"} == {request["kind"] for request in requests}
    stub.wait_for(served + len(requests))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing"], "scenario 'missing': no such file, and none of loadtests/scenarios (burst-on-cold, "),
        (["missing.yaml"], "missing.yaml: No such file"),
        (["steady", "--url", "ftp://x"], "--url = 'ftp://x': must be an http(s) URL"),
        (["steady", "--url", "http://x", "--serve", "c.yaml"], "--url and --serve: one or the other"),
        (["steady", "--url", "http://[::1"], "--url = 'http://[::1': must be an http(s) URL"),
        (["steady", "--url", "http://x:99999"], "--url = 'http://x:99999': must be an http(s) URL"),
        (["steady", "--url", "http://u:secret@x"], "--url: must have no user"),
        (["steady", "--url", "http://x?a=b"], "--url: must have no user, query or fragment"),
        (["steady", "--header", "x"], "--header = 'x': must be a name, a colon and a value"),
        (["steady", "--header", "x y: z"], "--header = 'x y: z': must be a name, a colon and a value"),
        (["steady", "--header", "x: y\nz"], "must be a name, a colon and a value"),
        (["steady", "--header", "content-length: 3"], "the client's own"),
        (["steady", "--seed", "-1"], "--seed = -1: must be from 0"),
        (["steady", "--price", "-1"], "--price = -1: must be from 0"),
        (["steady", "--trace", "t.csv"], "has no arrivals of shape: trace"),
        (["steady", "step"], "one scenario at a time"),
        (["compare", "a"], "compare: takes two runs, and 1 are given"),
        (["compare", "a.json", "b.json"], "a.json: No such file"),
        (["report"], "report: takes one run, and 0 are given"),
    ],
)
def test_wrong_input_is_named_with_key_value_and_bound(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["loadtest", *arguments]) == 2

    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_overwritten_unasked(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text("precious")

    assert run(scenario(tmp_path), stub, tmp_path) == 2

    assert "has a run already; --force overwrites it" in capsys.readouterr().err
    assert (tmp_path / "run.json").read_text() == "precious"


def test_a_header_replaces_the_key_of_the_environment_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key\n")

    assert loadtest._headers([]) == {"Authorization": "Bearer key"}
    assert loadtest._headers(["authorization: Basic x", "X-API-key: a:b"]) == {
        "Authorization": "Basic x", "X-Api-Key": "a:b",
    }  # fmt: skip


def test_a_report_that_cannot_be_written_leaves_the_summary(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("loadtests.report.document.write_json", full)

    assert run(scenario(tmp_path), stub, tmp_path / "out") == 1

    told = capsys.readouterr()
    assert told.out.startswith("Passed: ")
    assert "run.json: No space left on device" in told.err


def test_conversations_are_run_to_their_last_turns_and_reported(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = {"kind": "a", "api": "chat", "output_tokens": 5, "shared_prefix_tokens": 20}
    talk |= {"conversation": {"turns": 3, "think_s": 0.01}}
    burst = {"shape": "burst", "for_s": 30, "requests": 4}
    path = scenario(tmp_path, burst, requests=[talk], client={**PATIENT, "processes": 2})

    assert run(path, stub, tmp_path / "out") == 0

    told = capsys.readouterr()
    assert "twenty: 4 conversations in 30 s" in told.err
    assert "turns of each, on average" in told.out
    document = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [one["index"] for one in document["requests"]] == list(range(12))
    assert document["summary"]["conversations"]["whole"] == 4
    assert document["summary"]["prompt_cache"]["infinite_cache_tokens"] > 0
