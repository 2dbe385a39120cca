from dataclasses import replace

from loadtests.report.html import story
from loadtests.summary import summarize
from tests.loadtests import samples
from tests.loadtests.report.runs import OTHER, two_models


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
