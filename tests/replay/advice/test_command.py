import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replay.advice.advice_text import advice_document, advice_text
from replay.advice.advise import Advice, Compared, Part, Verdict
from replay.advice.score import Outcome, Score
from replay.inputs import Inputs
from replay.profile import load_profile
from serve_app.cli.main import main
from serve_app.settings.knobs import Knobs
from traces import ArrayTrace

CONFIG = Path(__file__).parents[3] / "config" / "serve.a100.yaml"
TRACE = ArrayTrace("mine", [0.0], [1], [1])
FIRST, SECOND = Part(TRACE, "first half", 0.0, 600.0), Part(TRACE, "second half", 600.0, None)
CURRENT = Knobs(min_replicas=0, max_replicas=8, headroom=1.0)
CHANGED = CURRENT.model_copy(update={"headroom": 0.5, "max_replicas": 12})


def score(*pairs: tuple[float, float], infeasible: float = 0.0) -> Score:
    return Score(tuple(Outcome(cost, share, 0.99, 4.0, 8.0, 8.0, infeasible) for cost, share in pairs))


OLD = score((3600.0, 0.995), (3700.0, 0.999))
NEW = score((3000.0, 0.993), (3060.0, 0.995))


def advice(verdict: Verdict = Verdict.CHANGE, **other: Any) -> Advice:
    fields: dict[str, Any] = {
        "verdict": verdict, "current": CURRENT, "advised": CHANGED, "tuned_on": SECOND,
        "tuned": Compared(OLD, NEW), "checked_on": FIRST, "held_out": Compared(OLD, NEW), "goal": 0.99,
        "seeds": (0, 1), "names": ("headroom", "max_replicas"), "tried": 20, "dropped": 12, "exhausted": True,
        "duration_s": 1200.0, "profile": load_profile("a100-80gb"), "spent_s": 61.0,
    }  # fmt: skip
    return Advice(**{**fields, **other})


def inputs(model: str | None = "llama", config: Path | None = Path("serve.yaml")) -> Inputs:
    app = "tide" if config else None
    return Inputs(TRACE, CURRENT, load_profile("a100-80gb"), None, config, app, model, (), TRACE)


def test_the_patch_is_as_the_file_needs_it() -> None:
    text = advice_text(advice(), inputs())

    assert text.startswith(
        "Change 2 knobs: 17.0 % fewer GPU-seconds at 99.3 % attainment; the goal is 99.0 %."
    )
    assert "In serve.yaml, in application 'tide', add to what is there already:" in text
    assert (
        """\
  deployments:
  - name: Ingress
    user_config:
      autoscaling:
        llama:
          max_replicas: 12  # was 8
          headroom: 0.5  # was 1
"""
        in text
    )
    assert "tideserve knobs set --app tide llama max_replicas=12 headroom=0.5" in text


def test_unfinished_background_work_is_reported() -> None:
    late = Score((Outcome(3000.0, 0.995, 0.99, 4.0, 8.0, 8.0, 0.0, late=40.0),))
    unfinished = advice(Verdict.NOTHING_MEETS, tuned=Compared(late, late), advised=CURRENT)
    text = advice_text(unfinished, inputs())

    assert text.startswith(
        "No configuration that was tried attains 99.0 % and finishes the background work by its deadline; "
        "the current knobs come closest, with 99.5 % (40 background requests unfinished at their deadline)."
    )
    assert re.search(r"late background +40", text)
    assert advice_document(unfinished, inputs())["halves"]["second half"]["current"]["late"]["high"] == 40.0
    assert "background" not in advice_text(advice(), inputs())


def test_text_has_costs_and_certainty_of_both_halves() -> None:
    text = advice_text(advice(), inputs())

    assert "first half, not tuned on" in text
    assert "second half, tuned on" in text
    assert "3,650 (3,600-3,700)" in text
    assert "3,030 (3,000-3,060)" in text
    assert "3.72 (3.67-3.77)" in text
    assert "99.7 % (99.5-99.9)" in text
    assert "+16.7 to +17.3 % saved; that is beyond the noise between seeds." in text
    assert "20 configurations were tried" in text


def test_a_saving_within_the_noise_is_no_change() -> None:
    text = advice_text(advice(Verdict.NOISE), inputs())

    assert text.startswith("Keep the knobs as they are: a change of 2 knobs costs 17.0 % fewer")
    assert "user_config" not in text
    assert "  headroom: 1 -> 0.5" in text


def test_text_names_the_closest_if_nothing_meets_the_goal() -> None:
    low = score((3000.0, 0.9), (3000.0, 0.91), infeasible=0.087)

    text = advice_text(advice(Verdict.NOTHING_MEETS, tuned=Compared(low, low)), inputs())

    assert text.startswith(
        "No configuration that was tried attains 99.0 %; a change of 2 knobs comes closest, with 90.0 %"
    )
    assert "8.7 % of the requests miss the TTFT target of 200 ms by their own prefill" in text
    assert "user_config" in text


def test_text_says_if_there_was_no_time() -> None:
    kept = advice(
        Verdict.KEEP, advised=CURRENT, tuned=Compared(OLD, OLD), held_out=Compared(OLD, OLD), tried=0,
        exhausted=False,
    )  # fmt: skip

    text = advice_text(kept, inputs())

    assert "there was no time to try others" in text
    assert "give a longer --budget-s" in text
    assert "advised" not in text


def test_the_document_is_json_with_the_change_and_both_halves() -> None:
    document = json.loads(json.dumps(advice_document(advice(), inputs()), allow_nan=False))

    assert document["verdict"] == "change"
    assert document["changes"]["headroom"] == {"from": 1.0, "to": 0.5}
    assert document["user_config"] == {"autoscaling": {"llama": {"max_replicas": 12, "headroom": 0.5}}}
    assert document["halves"]["second half"]["tuned_on"] is True
    assert document["halves"]["first half"]["within_noise"] is False
    assert document["halves"]["first half"]["advised"]["gpu_seconds"]["median"] == 3030.0


def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"{at},100,10" for at in range(0, 1300, 2)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seeds", "0"], "--seeds = 0: must be from 1 to 100"),
        (["--attainment", "1.5"], "--attainment = 1.5: must be above 0 and at most 1"),
        (["--budget-s", "0"], "--budget-s = 0: must be from 1 to 86400"),
        (["--cold-start", "soon"], "--cold-start = 'soon': must be seconds"),
        (["--cold-start", "90,60"], "--cold-start = '90,60': the first must be at most the second"),
        (["--knobs", "ttft_target_s"], "knobs = 'ttft_target_s': must be of max_replicas"),
        (["--json", "/nowhere/out.json"], "--json = /nowhere/out.json: /nowhere is not a folder"),
        (["--fleet", "b300"], "profile = 'b300': must be one of"),
        (["--model", "llama"], "--app and --model name what is in a --config"),
        (["--config", str(CONFIG), "--model", "qwen"], "--model = 'qwen': not in the configuration"),
        (["--rate", "0"], "rate = 0.0: must be above 0"),
        (["--duration", "600"], "at least 1200 s"),
    ],
)
def test_bad_option_is_named_with_its_bound(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", "--trace", str(trace_file(tmp_path)), *arguments]) == 2

    assert told in capsys.readouterr().err


def test_the_knobs_and_the_hardware_come_from_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def taken(trace: Any, knobs: Knobs, **others: Any) -> Advice:
        given.update(others, knobs=knobs)
        return advice(seeds=(0, 1))

    monkeypatch.setattr("replay.advice.advise.advise", taken)
    out = tmp_path / "advice.json"
    arguments = ["--config", str(CONFIG), "--json", str(out), "--knobs", "max_replicas, headroom"]

    assert main(["advise", "--trace", str(trace_file(tmp_path)), *arguments, "--cold-start", "20"]) == 0

    assert (given["knobs"].max_replicas, given["knobs"].min_replicas) == (8, 0)
    assert given["profile"].gpu == "A100-80GB"
    assert given["cold_start_s"] == (20.0, 20.0)
    assert given["names"] == ("max_replicas", "headroom")
    printed = capsys.readouterr()
    assert "llama-3.1-8b-instruct:" in printed.out
    assert "knobs of llama-3.1-8b-instruct in" in printed.err
    assert json.loads(out.read_text())["model"] == "llama-3.1-8b-instruct"


def test_interrupted_it_advises_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> SimpleNamespace:
        raise KeyboardInterrupt

    monkeypatch.setattr("replay.advice.advise.advise", interrupted)

    assert main(["advise", "--trace", str(trace_file(tmp_path))]) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith("tideserve: interrupted; nothing is advised\n")
