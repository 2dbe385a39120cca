import io
from typing import Literal

import pytest
from rich.console import Console

from loadtests.compare import compare
from loadtests.record import Run
from loadtests.summary import summarize
from loadtests.terminal import print_comparison, print_summary
from loadtests.verdicts import judge
from tests.loadtests import samples


def console(terminal: bool = False) -> Console:
    colours: Literal["standard"] | None = "standard" if terminal else None
    return Console(width=100, file=io.StringIO(), force_terminal=terminal, color_system=colours)


def lines(of: Console) -> list[str]:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue().splitlines()


def printed(run: Run, terminal: bool = False) -> list[str]:
    summary = summarize(run)
    of = console(terminal)
    print_summary(summary, judge(run, summary), run, of)
    return lines(of)


def compared(*runs: Run) -> list[str]:
    of = console()
    print_comparison(compare(runs[:1], runs[1:]), of)
    return lines(of)


@pytest.mark.parametrize("run", [samples.cold_burst, samples.steady, samples.empty, samples.long])
def test_a_run_is_plain_text_of_100_columns(run: object) -> None:
    assert callable(run)
    told = printed(run())

    assert max(map(len, told)) <= 100
    assert "\x1b" not in "".join(told)
    assert "…" not in "".join(told)
    assert any("\x1b" in line for line in printed(run(), terminal=True))


def test_the_verdict_comes_first_and_the_sections_in_order() -> None:
    told = printed(samples.cold_burst())

    assert told[0] == "Passed: 13 of 13 bounds kept."
    first = [line.split()[0] for line in told if line.strip()]
    order = [first.index(name) for name in ("bound", "requests", "latency", "rate", "replicas", "errors")]
    assert order == sorted(order)


def row(told: list[str], begins: str) -> list[str]:
    return next(line.split() for line in told if line.startswith(begins))


def test_a_cold_burst_shows_waits_cost_and_errors() -> None:
    told = printed(samples.cold_burst())

    assert row(told, "scaling.returns_to")[1:3] == ["120", "s"]
    assert row(told, "all")[1:] == ["432", "412", "18", "0", "1", "0", "1", "2", "30"]
    assert row(told, "TTFT")[1:4] == ["432", "1", "never"]
    assert row(told, "GPU-seconds") == ["GPU-seconds", "570"]
    assert row(told, "cost") == ["cost", "$0.40"]
    assert row(told, "rejected")[:3] == ["rejected", "1", "429"]


def test_prompts_show_cached_and_cacheable_tokens() -> None:
    shared = {"planned_prefix_tokens": 32, "session": 0, "cached_tokens": 16}
    turns = [
        samples.record(0, 0.0, (0.5,), turn=1, next_at_s=3.0, **shared),
        samples.record(1, 3.0, (3.5,), turn=2, conversation_end="context", prompt_tokens=100, **shared),
    ]
    told = printed(samples.run(samples.scenario(), turns))

    assert row(told, "sent") == ["sent", "164"]
    assert row(told, "found in the prefix cache")[-3:] == ["32", "19.5", "%"]
    assert row(told, "one unlimited cache")[-3:] == ["65", "39.6", "%"]
    assert row(told, "turns of each")[-1] == "2.00"
    assert row(told, "ended by the model's context")[-1] == "1"
    assert "conversations" not in "".join(printed(samples.cold_burst()))


def test_a_run_without_an_answer_says_never_and_not_nan() -> None:
    told = "\n".join(printed(samples.empty()))

    assert told.startswith("Failed: 8 of 10 bounds missed.")
    assert "never" in told
    assert "nan" not in told
    assert "inf" not in told


def test_markup_and_terminal_codes_are_shown_and_not_obeyed() -> None:
    of = samples.scenario()
    bad = "[red]x[/red]\x1b[31m"
    run = samples.run(of, [samples.error("failed", 500, bad, model=bad, kind=bad)], url=bad, interrupted=bad)

    told = printed(run) + compared(run, run)

    assert "\x1b" not in "".join(told)
    assert "[red]x[/red]\N{REPLACEMENT CHARACTER}[31m" in told[0]
    printed(samples.hostile())


def test_a_comparison_fits_100_columns_with_the_verdict_whole_in_each_line() -> None:
    told = compared(samples.cold_burst(1), samples.cold_burst(2, slower=1.2))

    assert max(map(len, told)) <= 100
    assert "…" not in "".join(told)
    assert told[0].startswith("B is worse in")
    assert row(told, "ITL P50")[-1] == "worse"
    assert row(told, "cold wait max")[-3:] == ["no", "noise", "known"]
    assert row(told, "error rate")[-3:] == ["within", "the", "noise"]
