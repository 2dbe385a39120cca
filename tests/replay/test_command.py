import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from replay.command import check_files, policies, with_knobs, write_files
from replay.profile import load_profile
from serve_app.cli import CommandError
from serve_app.cli.main import main
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError

KNOBS = Knobs(min_replicas=0, max_replicas=32)
CONFIG = Path(__file__).parents[2] / "config" / "serve.a100.yaml"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two minutes at two requests a second."""
    path = tmp_path / "trace.csv"
    rows = (f"{at:g},400,20" for at in np.arange(0.0, 120.0, 0.5))
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows, ""]))
    return path


def test_torn_lines_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "requests.jsonl"
    line = '{"arrived_at": %d, "input_tokens": 400, "output_tokens": 20}\n'
    path.write_text("".join(line % second for second in range(60))[:-9])

    assert main(["replay", "--trace", str(path), "--policy", "static:1"]) == 0

    told = capsys.readouterr()
    assert "59 requests" in told.out
    assert f"{path}: torn lines left out: 1 (line 60)\n" in told.err


def documents(out: Path) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(out.read_text())
    return known


def test_knobs_and_profile_are_those_of_the_configuration(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    given = ["--config", str(CONFIG), "--knob", "headroom=2", "--knob", "ttft_target_s=0.3"]
    assert main(["replay", "--trace", str(trace), *given, "--json", str(out)]) == 0

    known = documents(out)
    assert (known["profile"], known["targets"]["ttft_s"]) == ("a100-80gb", 0.3)
    assert (known["knobs"]["headroom"], known["knobs"]["max_replicas"]) == (2.0, 8)
    assert known["oracle_ratio"] is None
    assert "results" not in known


def test_several_policies_are_compared_with_the_first(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"

    given = ["--policy", "static:2,static", "--policy", "hpa:ongoing=10", "--oracle", "--json", str(out)]
    assert main(["replay", "--trace", str(trace), *given]) == 0

    known = documents(out)
    names = ["static:2", "static:1", "hpa:ongoing=10", "oracle"]
    assert known["policy"] == names[0]
    assert [result["policy"] for result in known["results"]] == names
    assert list(known["peers"]) == names[1:]
    assert known["peers"]["static:1"]["ratio"] == pytest.approx(2.0, rel=0.01)
    assert all(result["oracle_ratio"] is not None for result in known["results"])
    assert known["results"][-1]["oracle_ratio"] == 1.0
    assert capsys.readouterr().out.startswith("Policies on trace.csv\n")


def test_the_trace_is_scaled_as_asked_for(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    given = ["--policy", "static:1", "--rate", "2", "--time", "0.5", "--seed", "4", "--json", str(out)]
    assert main(["replay", "--trace", str(trace), *given]) == 0

    known = documents(out)
    assert (known["requests"], known["seed"]) == (480, 4)
    assert known["duration_s"] < 62.0


def test_a_backlog_is_reported_apart(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"

    given = ["--trace", str(trace), "--policy", "static:1", "--json", str(out)]
    assert main(["replay", *given, "--background", "50%@00:01-00:20"]) == 0

    known, shown = documents(out), capsys.readouterr().out
    work = known["background"]
    assert (known["requests"], work["requests"], work["finished"], work["late"]) == (240, 120, 120, 0)
    assert known["lanes"].keys() == {"standard", "background"}
    assert "TTFT by lane" in shown
    assert "unfinished at the deadline" in shown

    assert main(["replay", *given]) == 0
    assert documents(out).keys() == known.keys() - {"lanes", "background"}
    assert "lane" not in capsys.readouterr().out


def test_drawn_adapters_are_loaded_and_their_hits_reported(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, fleet = tmp_path / "out.json", tmp_path / "fleet.yaml"
    document = load_profile("l4").model_dump(mode="json") | {"max_cached_adapters": 4, "adapter_load_s": 0.2}
    fleet.write_text(yaml.safe_dump(document))
    given = ["--trace", str(trace), "--policy", "static:1", "--fleet", str(fleet), "--json", str(out)]

    def served(*options: str) -> dict[str, Any]:
        assert main(["replay", *given, *options]) == 0
        return documents(out)

    few, many, none = served("--adapters", "4@50%"), served("--adapters", "200@50%"), served()
    assert few["adapter_requests"] == many["adapter_requests"]
    assert 90 < few["adapter_requests"] < 150
    assert few["adapter_hits"] > 0.95 > many["adapter_hits"] > 0.1
    assert many["ttft"]["all"]["p95_s"] > none["ttft"]["all"]["p95_s"] + 0.15
    assert none["adapter_requests"] == 0
    assert capsys.readouterr().out.count("requests that found their adapter loaded") == 2


@pytest.mark.parametrize("text", ["200", "0@50%", "1001@50%", "5@0%", "5@101%", "5@x%"])
def test_adapters_out_of_bounds_are_named(trace: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--trace", str(trace), "--adapters", text]) == 2

    assert f"--adapters = '{text}': must be 1 to 1000 adapters" in capsys.readouterr().err


def test_starts_on_warm_nodes_are_shorter(trace: Path, tmp_path: Path) -> None:
    """One node is always up, so that the first replica starts there."""
    out = tmp_path / "out.json"

    def longest_s(*options: str) -> float:
        given = ["--trace", str(trace), "--initial", "0", *options, "--json", str(out)]
        assert main(["replay", *given]) == 0
        return float(documents(out)["ttft"]["cold"]["p50_s"])

    assert (
        longest_s("--cold-start", "60/3", "--warm-nodes", "1") < 5.0 < 20.0 < longest_s("--cold-start", "60")
    )


def test_an_oracle_that_misses_the_goal_says_so(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hopeless = ["--knob", "itl_target_s=0.005", "--oracle"]

    assert main(["replay", "--trace", str(trace), "--policy", "static:1", *hopeless]) == 0

    assert (
        "found no schedule of this fleet that attains 99 %; the best attains 0.00 %"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--policy", "luck"], "policy 'luck': no such policy"),
        (["--policy", "ours,static:99"], "'static:99': must be from min_replicas = 0 to max_replicas = 32"),
        (["--knob", "head=1"], "knob.head = 1: no such knob"),
        (["--capacity", "0"], "capacity = 0: must be from 1 to 10000"),
        (["--cold-start", "90:60"], "--cold-start = '90:60': the first must be at most the second"),
        (["--cold-start", "90/5,3"], "--cold-start = '90/5,3': the first must be at most the second"),
        (["--cold-start", "90/"], "--cold-start = '90/': must be seconds from 0 to 86400"),
        (["--warm-nodes", "-1"], "--warm-nodes = -1: must be from 0 to 10000"),
        (["--fleet", "abacus"], "profile = 'abacus': must be one of"),
        (["--json", "no/such/out.json"], "--json = no/such/out.json: no/such is not a folder"),
        (["--rate", "0"], "rate = 0.0: must be above 0"),
        (["--background", "20%"], "--background = '20%': must be a share above 0 % and at most 100 %"),
    ],
)
def test_wrong_options_are_refused_before_a_replay(
    trace: Path,
    given: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("replay.run.run", unreachable)

    assert main(["replay", "--trace", str(trace), *given]) == 2

    assert problem in capsys.readouterr().err


def test_interrupted_it_writes_nothing(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("replay.run.run", interrupted)
    out = tmp_path / "out.json"

    assert main(["replay", "--trace", str(trace), "--json", str(out)]) == 130

    assert "interrupted; nothing was written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]


def unreachable(*_: Any, **__: Any) -> None:
    pytest.fail("replayed all the same")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["ours"], ["ours"]),
        (["ours,ray:5", "static:3"], ["ours", "ray:5", "static:3"]),
        (["dynamo:itl=0.015,ttft=0.15, interval=60"], ["dynamo:itl=0.015,ttft=0.15,interval=60"]),
        (
            ["ours,dynamo:itl=0.02,ttft=0.2,hpa:waiting=1"],
            ["ours", "dynamo:itl=0.02,ttft=0.2", "hpa:waiting=1"],
        ),
    ],
)
def test_commas_separate_policies_and_the_settings_of_one(given: list[str], found: list[str]) -> None:
    assert policies(given) == found


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["ours,,ray"], "--policy: a policy is missing between commas, or has no name"),
        ([""], "--policy: a policy is missing between commas, or has no name"),
        (["ours,ray", "ours"], "--policy = 'ours': given twice"),
    ],
)
def test_a_missing_or_repeated_policy_is_refused(given: list[str], problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        policies(given)

    assert error.value.problems == [problem]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["headroom"], "--knob = 'headroom': must be name=value"),
        (["head_room=1"], "knob.head_room = 1: no such knob; did you mean 'headroom'?"),
        (["headroom=-1"], "knob.headroom = -1: input should be greater than or equal to 0"),
        (["headroom=default"], "knob.headroom = default: must be a value"),
        (["headroom=1", "headroom=2"], "headroom: given twice"),
        (["min_replicas=40"], "knob: min_replicas = 40 must be at most max_replicas = 32"),
    ],
)
def test_wrong_knob_is_named_with_value_and_bound(given: list[str], problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        with_knobs(KNOBS, given)

    assert error.value.problems == [problem]


def test_files_are_replaced_all_or_none(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "folder" / "b.html"
    first.write_text("before")

    with pytest.raises(CommandError, match=r"b\.html: could not be written: No such file or directory"):
        write_files({first: "after", second: "page"})
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]

    second.parent.mkdir()
    assert write_files({first: "after", second: "page"}) == [first, second]
    assert [path.read_text() for path in (first, second)] == ["after", "page"]


def test_an_unwritable_place_is_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as error:
        check_files({"--json": tmp_path / "no" / "a.json", "--html": tmp_path})

    assert error.value.problems == [
        f"--json = {tmp_path}/no/a.json: {tmp_path}/no is not a folder",
        f"--html = {tmp_path}: a folder; must be a file",
    ]
