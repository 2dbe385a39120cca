import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtests.record import Record, Run
from loadtests.report.document import read_run, run_document, write_json
from serve_app.settings.settings_error import SettingsError
from tests.loadtests import samples
from tests.loadtests.report.runs import reported, two_models

HALF_A_TICK = 0.5e-4


def written(path: Path, run: Run) -> Path:
    return write_json(path, *reported(run))


def changed(path: Path, change: Callable[[Any], object]) -> Path:
    """A document with one thing changed."""
    document = run_document(*reported(samples.cold_burst()))
    change(document)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("make", [samples.cold_burst, samples.empty, samples.hostile, two_models])
def test_a_run_comes_back_as_it_was_written(make: Callable[[], Run], tmp_path: Path) -> None:
    run = make()
    back = read_run(written(tmp_path / "run.json", run))

    assert replace(back, records=(), samples=(), duration_s=0.0) == replace(
        run, records=(), samples=(), duration_s=0.0
    )
    assert [replace(one, at_s=0.0) for one in back.samples] == [replace(one, at_s=0.0) for one in run.samples]
    assert len(back.records) == len(run.records)
    times = {"at_s": 0.0, "sent_s": 0.0, "ended_s": 0.0, "cold_wait_s": 0.0, "pieces_s": (), "phases": ()}
    for ours, theirs in zip(back.records, run.records, strict=True):
        assert replace(ours, **times) == replace(theirs, **times)
        assert ours.pieces_s == pytest.approx(theirs.pieces_s, abs=HALF_A_TICK * 1.001)
        assert (ours.at_s, ours.ended_s) == pytest.approx((theirs.at_s, theirs.ended_s), abs=1e-4)
        assert [phase for _, phase in ours.phases] == [phase for _, phase in theirs.phases]


def test_a_read_run_is_written_as_the_same_bytes(tmp_path: Path) -> None:
    first = written(tmp_path / "first.json.gz", samples.cold_burst())
    back = read_run(first)
    second = written(tmp_path / "second.json.gz", back)
    flat = written(tmp_path / "flat.json", back)

    assert read_run(second) == back
    assert json.loads(gzip.decompress(second.read_bytes())) == json.loads(flat.read_bytes())
    assert written(tmp_path / "again.json.gz", back).read_bytes() == second.read_bytes()
    assert len(second.read_bytes()) < len(flat.read_bytes()) / 3


def test_rounding_never_adds_up_over_the_pieces_of_an_answer(tmp_path: Path) -> None:
    pieces = tuple(1.0 + 0.00014 * place for place in range(2000))
    run = replace(samples.steady(), records=(samples.record(0, 0.99996, pieces),), samples=())
    back = read_run(written(tmp_path / "run.json", run)).records[0]

    assert back.pieces_s[-1] == pytest.approx(pieces[-1], abs=HALF_A_TICK * 1.001)
    assert min(b - a for a, b in zip(back.pieces_s, back.pieces_s[1:], strict=False)) > 0


def test_the_document_has_everything_and_says_never() -> None:
    run, summary, verdicts = reported(samples.empty())
    document = run_document(run, summary, verdicts)

    assert (document["format"], document["version"]) == ("tideserve-loadtest", 1)
    assert document["began_iso"] == "2026-11-21T10:00:00+00:00"
    assert document["seed"] == run.scenario["seed"]
    assert document["verdict"]["overall"] == "fail"
    assert document["verdict"]["exit_status"] == verdicts.exit_status
    assert document["summary"]["latencies"]["ttft"]["p99"] == "never"
    assert document["summary"]["latencies"]["itl"] is None
    assert document["summary"]["errors"] == 12
    assert document["summary"]["windows"][0]["ttft_s"]["p50"] == "never"
    assert len(document["requests"]) == 12
    assert len(document["samples"]) == len(run.samples)
    assert document["decisions"][0]["reason"].startswith("queue: ")
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("at", [math.inf, math.nan])
def test_a_request_without_a_time_is_refused(at: float) -> None:
    run, summary, verdicts = reported(samples.steady())
    record = Record(0, "chat", "m", at_s=at, sent_s=0.0, ended_s=0.0, outcome="failed")

    with pytest.raises(ValueError, match=r"a time must be finite: (inf|nan)"):
        run_document(replace(run, records=(record,)), summary, verdicts)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.update(version=2), r"run\.json: version = 2: must be 1"),
        (lambda d: d.pop("version"), r"run\.json: version = None: must be 1"),
        (lambda d: d.update(format="har"), r"run\.json: not a load test's document"),
        (lambda d: d["requests"][3].update(status="200"), r"run\.json: requests\[3\]\.status = '200': "),
        (lambda d: d["requests"][5].update(outcome="lost"), r"requests\[5\]\.outcome = 'lost': "),
        (lambda d: d["requests"][5]["pieces"].append(1.5), r"requests\[5\]\.pieces\[\d+\] = 1\.5: "),
        (lambda d: d["requests"][9].update(pieces=[5, -1]), r"requests\[9\]\.pieces = \[5, -1\]: .*-1 tick"),
        (lambda d: d["requests"][5].update(phases=[["x", 1]]), r"requests\[5\]\.phases\[0\]\[0\] = 'x': "),
        (lambda d: d["requests"][5].update(speed=1), r"requests\[5\]\.speed = 1: no such"),
        (lambda d: d["samples"][2].update(ready=-2), r"samples\[2\]\.ready = -2: "),
        (lambda d: d["samples"][2].pop("model"), r"samples\[2\]\.model: required"),
        (lambda d: d["decisions"][0].pop("at"), r"decisions\[0\]\.at: required"),
        (lambda d: d["timekeeping"].update(cpu_share="much"), r"timekeeping\.cpu_share = 'much': "),
        (lambda d: d.update(duration_s=-1), r"duration_s = -1: "),
        (lambda d: d["scenario"].update(name="No Name"), r"scenario\.name = 'No Name': "),
    ],
)
def test_wrong_values_are_named_with_file_and_key(
    change: Callable[[Any], object], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=problem):
        read_run(changed(tmp_path / "run.json", change))


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    whole = written(tmp_path / "run.json.gz", samples.empty()).read_bytes()
    for name, data, problem in (
        ("half.json.gz", whole[: len(whole) // 2], "not whole"),
        ("text.json", b"no", "not JSON"),
        ("deep.json", b"[" * 100_000, "not JSON"),
        ("list.json", b"[1]", "not a load test's document"),
        ("bytes.json", b'"\xff"', "not JSON"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SettingsError, match=problem):
            read_run(tmp_path / name)
    with pytest.raises(SettingsError, match=r"none\.json: No such file"):
        read_run(tmp_path / "none.json")


def test_half_surrogates_are_replaced(tmp_path: Path) -> None:
    run = replace(samples.empty(), records=(samples.error("failed", 0, "half a pair: \ud800"),))

    assert read_run(written(tmp_path / "run.json", run)).records[0].error == "half a pair: ?"
