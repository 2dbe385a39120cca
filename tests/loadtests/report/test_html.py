import re
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.report.html import page, story, write_html
from loadtests.summary import summarize
from tests.loadtests import samples
from tests.loadtests.drawing.elements import HOSTILE, Elements
from tests.loadtests.report.runs import OTHER, reported, two_models


def test_the_page_asks_nobody_for_anything() -> None:
    text = page(*reported(samples.cold_burst()))
    found = Elements(text)

    assert not re.search(r"@import|url\((?!#)", text)
    assert set(re.findall(r"https?://[^\"\\ ]*", text)) == {"http://127.0.0.1:8000"}  # the server's, as text
    assert [value for name, value in found.attributes if name in ("src", "href")] == ["data:,", "#timeline"]
    assert "default-src 'none'" in text
    assert found.tags.count("script") == 2


def test_nothing_from_outside_can_end_the_script_or_become_markup() -> None:
    run = samples.cold_burst()
    records = tuple(
        replace(one, model=HOSTILE, kind=HOSTILE, phases=((0.1, HOSTILE),)) for one in run.records
    )
    decision = dict(run.decisions[0]) | {"reason": HOSTILE, "terms": [{"name": HOSTILE, "why": HOSTILE}]}
    hostile = replace(
        run,
        scenario=dict(run.scenario) | {"about": HOSTILE},
        records=records,
        decisions=(decision,),
        machine={HOSTILE: HOSTILE},
        unmet=HOSTILE,
    )
    text = page(*reported(hostile))
    found = Elements(text)

    assert found.tags.count("script") == 2
    assert "alert(1)</script>" not in text
    data = found.document()
    assert "</script>" in data["points"]["kinds"][0]
    assert "</script>" in data["decisions"][0]["reason"]
    assert "</script>" in data["verdict"]["invalid"][0]
    text.encode()


def test_a_theme_can_be_forced() -> None:
    kept = reported(samples.steady())

    assert '<html lang="en">' in page(*kept)
    assert '<html lang="en" data-theme="dark">' in page(*kept, "dark")
    assert '<html lang="en" data-theme="light">' in page(*kept, "light")


def test_the_data_have_verdict_bounds_and_decisions() -> None:
    data = Elements(page(*reported(samples.cold_burst()))).document()

    assert data["verdict"]["overall"] == "pass"
    assert (data["verdict"]["judged"], data["verdict"]["missed"]) == (13, 0)
    assert data["bounds"]["warm"] == {"p50": 0.1, "p95": 0.2, "p99": 0.5}
    assert data["bounds"]["ttft"] == {}
    assert [decision["at"] for decision in data["decisions"]][:3] == [0.6, 1.6, 11.6]
    assert "signals" not in data["decisions"][0]
    assert data["costs"][0]["ready"] == pytest.approx(507, abs=5)


def test_a_page_is_written_where_asked_and_stays_small(tmp_path: Path) -> None:
    path = write_html(tmp_path / "new" / "long.html", *reported(samples.long()))

    assert path.stat().st_size < 1_000_000


def test_a_decision_of_an_unknown_form_is_shown() -> None:
    run = samples.cold_burst()
    odd = {
        "at": samples.BEGAN + 3.0,
        "old_target": "two",
        "terms": ["no", {"why": 3}],
        "clamps": None,
        "notes": None,
    }
    data = Elements(page(*reported(replace(run, decisions=(odd,))))).document()

    assert data["decisions"] == [
        {
            "at": 3.0, "model": "", "kind": "", "mode": "", "binding": "", "reason": "", "counterfactual": "",
            "old_target": None, "new_target": None, "wanted": None, "ready": None,
            "terms": [{"name": "", "replicas": 0, "why": "3"}], "clamps": [], "notes": [],
        }
    ]  # fmt: skip


def test_the_story_of_a_cold_burst() -> None:
    run = samples.cold_burst()

    assert story(run, summarize(run)) == (
        "30 requests arrived before a replica was ready; the first token came after 19.7 s; "
        "3 replicas at most, back at zero 42.5 s after the last answer; 2 requests ended in an error."
    )


def test_the_story_of_steady_traffic() -> None:
    run = samples.steady()
    told = story(run, summarize(run))

    assert told.startswith(f"{len(run.records)} requests in ")
    assert "half of them had a first token within " in told
    assert told.endswith("2 replicas at most.")


def test_the_story_of_a_run_without_tokens_or_requests() -> None:
    run = samples.empty()
    nothing = replace(run, records=())

    assert story(run, summarize(run)) == (
        "12 requests arrived before a replica was ready; no token ever came; no replica was ever ready; "
        "12 requests ended in an error."
    )
    assert story(nothing, summarize(nothing)) == "No request was sent."


def test_models_are_named_where_there_are_several() -> None:
    run = two_models()

    assert f"3 replicas of {OTHER} at most" in story(run, summarize(run))
