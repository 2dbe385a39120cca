import re
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.report.html import page, write_html
from tests.loadtests import samples
from tests.loadtests.drawing.elements import HOSTILE, Elements
from tests.loadtests.report.runs import reported


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


def test_the_data_have_the_verdict_the_bounds_and_decisions_in_time_of_the_run() -> None:
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


def test_a_decision_of_an_unknown_form_is_shown_as_far_as_it_goes() -> None:
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
