import re
from dataclasses import replace

import pytest

from replay.report.html import page
from tests.loadtests.drawing.elements import HOSTILE, Elements
from tests.replay.report import samples


@pytest.fixture(scope="module")
def results() -> list[samples.Result]:
    return samples.realistic()


def test_the_page_asks_nobody_for_anything(results: list[samples.Result]) -> None:
    text = page(results)
    found = Elements(text)

    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert [value for name, value in found.attributes if name in ("src", "href")] == ["data:,", "#timeline"]
    assert "default-src 'none'" in text
    assert found.tags.count("script") == 2


def test_nothing_in_a_name_can_end_the_script_or_become_markup(results: list[samples.Result]) -> None:
    decision = {**results[0].decisions[0], "reason": HOSTILE}
    peers = {HOSTILE: samples.peer(1, 1, 1)}
    hostile = replace(results[0], policy=HOSTILE, trace=HOSTILE, decisions=[decision], peers=peers)
    text = page([hostile])
    found = Elements(text)

    assert found.tags.count("script") == 2
    assert "alert(1)</script>" not in text
    assert found.document()["results"][0]["policy"] == HOSTILE
    assert found.document()["results"][0]["decisions"][0]["reason"] == HOSTILE
    assert found.document()["results"][0]["trace"] == HOSTILE


def test_the_data_are_the_documents_with_a_timeline_that_can_be_drawn(results: list[samples.Result]) -> None:
    data = Elements(page(samples.realistic(hours=6), main=1)).document()

    assert data["main"] == 1
    assert sum(row["main"] for row in data["rows"]) == 1
    assert "signals" not in data["results"][0]["decisions"][0]


def test_an_empty_result_has_a_page() -> None:
    assert "there was nothing to attain" in page([samples.empty()])


def test_a_page_needs_a_result() -> None:
    with pytest.raises(ValueError, match="results, which are 0"):
        page([])
