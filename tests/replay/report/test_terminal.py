import io
from dataclasses import replace
from typing import Literal

import pytest
from rich.console import Console

from replay.report.terminal import print_comparison, print_result
from tests.replay.report import samples


def printed(*results: samples.Result, terminal: bool = False) -> list[str]:
    colours: Literal["standard"] | None = "standard" if terminal else None
    console = Console(width=80, file=io.StringIO(), force_terminal=terminal, color_system=colours)
    print_result(results[0], console)
    print_comparison(results, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture(scope="module")
def results() -> list[samples.Result]:
    return samples.realistic()


def test_it_fits_80_columns_and_is_plain_text_where_there_is_no_terminal(
    results: list[samples.Result],
) -> None:
    lines = printed(*results)

    assert max(len(line) for line in lines) <= 80
    assert "\x1b" not in "".join(lines)
    assert "…" not in "".join(lines)
    assert any("\x1b" in line for line in printed(*results, terminal=True))


def test_the_sections_of_a_result_stand_in_order(results: list[samples.Result]) -> None:
    lines = [line.split()[0] for line in printed(*results) if line.strip()]

    order = [lines.index(name) for name in ("SLO", "latency", "cost", "fleet", "Policies")]
    assert order == sorted(order)


def test_every_policy_has_a_line_with_its_cost_and_ratios(results: list[samples.Result]) -> None:
    lines = printed(*results)

    static = next(line for line in lines if line.startswith("static:16"))
    ratio = f"{results[0].gpu_seconds.total / 172_800:.2f}"
    assert static.split()[1:] == ["172,800", "1.68", ratio, "100", "100", "16", "1", "16", "120.00"]


def test_a_large_fleet_still_fits(results: list[samples.Result]) -> None:
    gpu = replace(results[0].gpu_seconds, serving=9_876_543.0)
    large = replace(results[0], policy="p" * 300, gpu_seconds=gpu, starts=12_345, changes=12_345)

    assert max(len(line) for line in printed(large, *results[1:])) <= 80


def test_markup_and_terminal_codes_in_a_name_are_shown_and_not_obeyed() -> None:
    lines = printed(replace(samples.empty(), policy="[red]x[/red]\x1b[31m", trace="[bold]"))

    assert lines[0] == "[red]x[/red]�[31m on [bold]"


def test_an_empty_replay_is_said_to_be_one() -> None:
    text = "\n".join(printed(samples.empty()))

    assert "The trace has no requests" in text
    assert "nan" not in text


def test_who_was_never_answered_and_what_raised_is_said_only_where_there_is_any(
    results: list[samples.Result],
) -> None:
    quiet = "\n".join(printed(results[0]))
    told = [" ".join(line.split()) for line in printed(replace(results[0], unanswered=12, policy_errors=3))]

    assert "never answered" not in quiet
    assert "raised" not in quiet
    assert "never answered 12" in told
    assert "decisions that raised 3" in told
