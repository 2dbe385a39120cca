"""Reading a scenario's file."""

from pathlib import Path

import pytest

from loadtests.scenario import Scenario, read_scenario
from serve_app.settings.settings_error import SettingsError

REPOSITORY = Path(__file__).parents[2]
SCENARIOS = sorted((REPOSITORY / "loadtests" / "scenarios").rglob("*.yaml"))
HEAD = "name: t\narrivals:\n  - {shape: steady, for_s: 10, rate: 1}\nrequests:\n  - kind: a\n"


def problems(folder: Path, text: str) -> list[str]:
    path = folder / "s.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_scenario(path)
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_that_comes_along_is_valid(path: Path) -> None:
    assert read_scenario(path).about


def test_wrong_values_are_named_with_line_key_and_bound(tmp_path: Path) -> None:
    text = (
        HEAD + "    prompt_tokens: 0\n    leave: {share: 2, after_s: 1}\nslos:\n  ttft_ms: {p50: 3, p95: 2}\n"
    )

    assert problems(tmp_path, text) == [
        "s.yaml:6: requests[0].prompt_tokens = 0: input should be greater than or equal to 1",
        "s.yaml:7: requests[0].leave.share = 2: input should be less than or equal to 1",
        "s.yaml:9: slos.ttft_ms = {'p50': 3, 'p95': 2}: p50 = 3 must be at most p95 = 2",
    ]


TALK = "    api: chat\n    conversation:\n"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("closed: {streams: 1, for_s: 1}\n", "one of arrivals (open loop) and closed"),
        ("sed: 3\n", "sed = 3: no such setting"),
        ("  - kind: a\n", "requests[].kind must differ: a, a"),
        ("    prompt_tokens: {least: 5, most: 4}\n", "least = 5 must be at most most = 4"),
        (
            "    prompt_tokens: {median: 5, sigma: 1, most: 4}\n",
            "median = 5 must be from least = 1 to most = 4",
        ),
        ("    leave: {share: 1}\n", "one of after_tokens and after_s must be given"),
        ("seed: -1\n", "seed = -1: input should be greater than or equal to 0"),
        (TALK + "      turns: 0\n", "turns = 0: input should be greater than or equal to 1"),
        (TALK + "      turns: {mean: 0.5}\n", "mean = 0.5: input should be greater than or equal to 1"),
        (TALK + "      turns: {mean: 9, most: 5}\n", "mean = 9 must be at most most = 5"),
        (
            TALK + "      turns: {least: 9, most: 101}\n",
            "turns.most = 101: input should be less than or equal to 100",
        ),
        (TALK + "      think_s: -1\n", "think_s = -1: input should be greater than or equal to 0"),
        (
            TALK + "      think_s: {median: 50, sigma: 1, most: 20}\n",
            "median = 50.0 must be from least = 0.0 to most = 20.0",
        ),
        (TALK + "      think: 1\n", "conversation.think = 1: no such setting"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, more: str, told: str) -> None:
    assert told in problems(tmp_path, HEAD + more)[0]


def test_a_file_without_a_scenario_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, HEAD + "name: again\n")[0].endswith("name: given twice; line 1 has it first")
    assert problems(tmp_path, "a: [")[0].startswith("s.yaml:1: not YAML")
    assert problems(tmp_path, "- 1\n") == ["s.yaml: must be a mapping with the fields of a scenario"]
    with pytest.raises(SettingsError, match="No such file"):
        read_scenario(tmp_path / "missing.yaml")


def test_the_digest_ignores_the_layout_of_the_file(tmp_path: Path) -> None:
    one, other = tmp_path / "1.yaml", tmp_path / "2.yaml"
    one.write_text(HEAD)
    other.write_text("# a comment\n" + HEAD + "repeat: 1\n")

    assert read_scenario(one).digest() == read_scenario(other).digest()
    changed: Scenario = read_scenario(one).model_copy(update={"seed": 1})
    assert changed.digest() != read_scenario(one).digest()


def test_a_conversation_needs_the_chat_api_and_lengthless_arrivals(tmp_path: Path) -> None:
    silent = HEAD + "    conversation: {}\n"
    traced = (HEAD + TALK + "      turns: 2\n").replace(
        "{shape: steady, for_s: 10, rate: 1}", "{shape: trace, for_s: 9}"
    )

    assert "api = completions: must be chat with a conversation" in problems(tmp_path, silent)[0]
    assert "arrivals[].shape = trace: not with the conversations of kind a" in problems(tmp_path, traced)[0]
