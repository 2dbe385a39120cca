"""The JSON document, the tables and the HTML page of results."""

import io
import json
import re
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from rich.console import Console

from replay.report.comparison import cheapest_peer, standings, verdict
from replay.report.document import document, page
from replay.report.terminal import print_comparison, print_result
from replay.result import Result
from tests.loadtests.drawing.elements import HOSTILE, Elements
from tests.replay.report import samples

# -- the comparison


def test_standings_are_sorted_by_cost_without_duplicates() -> None:
    results = samples.realistic()
    rows = standings(results)

    assert [row.gpu_seconds for row in rows] == sorted(row.gpu_seconds for row in rows)
    assert {row.policy for row in rows} == {"ours", "ray:5", "static:8", "oracle", "dynamo"}
    assert [row.policy for row in rows if row.main] == ["ours"]
    static = next(row for row in rows if row.policy == "static:8")
    assert static.ratio == pytest.approx(results[0].gpu_seconds.total / static.gpu_seconds)
    assert static.oracle_ratio == pytest.approx(static.gpu_seconds / (0.8 * results[0].gpu_seconds.total))


def test_the_pareto_front_rises_without_the_oracle() -> None:
    worse = replace(samples.empty(), policy="worse", attainment=0.5)
    better = replace(samples.empty(), policy="better", attainment=0.9)
    rows = standings(samples.realistic())
    front = [row.attainment for row in rows if row.on_front]

    assert front == sorted(set(front))
    assert not next(row for row in rows if row.policy == "oracle").on_front
    assert [row.policy for row in standings([worse, better]) if row.on_front] == ["better"]


def test_the_verdict_names_the_cheapest_peer_that_reaches_the_goal() -> None:
    result = samples.realistic()[0]
    total = result.gpu_seconds.total
    peers = {"good": samples.peer(2 * total, 0.995, 1.0), "bad": samples.peer(1.0, 0.5, 0.5)}
    result = replace(result, peers=peers)
    rows = standings([result])

    best = cheapest_peer(rows)
    assert best is not None
    assert best.policy == "good"
    text = verdict(result, rows)
    assert "1.25 times what a clairvoyant schedule would have paid" in text
    assert text.endswith("50 % fewer GPU-seconds than good, the cheapest other policy that reaches 99 %.")
    assert "no requests" in verdict(samples.empty(), standings([samples.empty()]))


def test_a_comparison_needs_its_main_result() -> None:
    with pytest.raises(ValueError, match="main = 0 must be an index of results, which are 0"):
        page([])


# -- the document


def test_the_document_has_every_figure() -> None:
    result = samples.realistic()[0]
    found = document(result)

    assert found["gpu_seconds"] == pytest.approx(result.gpu_seconds.total, abs=0.01)
    assert sum(found["gpu_seconds_by_state"].values()) == pytest.approx(found["gpu_seconds"], abs=0.01)
    assert found["oracle_ratio"] == pytest.approx(1.25)
    assert found["ttft"]["cold"].keys() == {"count", "mean_s", "p50_s", "p90_s", "p95_s", "p99_s"}
    static = found["peers"]["static:8"]
    assert static["ratio"] == pytest.approx(found["gpu_seconds"] / static["gpu_seconds"], rel=1e-4)
    assert found.keys() == document(samples.empty()).keys()


def test_the_document_is_valid_json_with_any_number() -> None:
    result = samples.realistic()[0]
    hostile = replace(
        result,
        attainment=float("nan"),
        oracle_gpu_seconds=None,
        decisions=[{"at": 1e6 + 0.125, "signals": {"p95": float("inf")}, "new_target": np.int64(3)}],
        knobs={"share": np.float64("nan")},
        timeline=replace(result.timeline, at_s=result.timeline.at_s + 123_456.5),
    )

    found = json.loads(json.dumps(document(hostile), allow_nan=False))

    assert (found["attainment"], found["oracle_ratio"], found["knobs"]) == (None, None, {"share": None})
    assert found["decisions"] == [{"at": 1000000.125, "signals": {"p95": None}, "new_target": 3}]
    assert found["timeline"]["at_s"][0] == 123_456.5
    assert json.loads(json.dumps(document(samples.empty()), allow_nan=False))["requests"] == 0


# -- the terminal


def printed(*results: Result, terminal: bool = False) -> list[str]:
    colours: Literal["standard"] | None = "standard" if terminal else None
    console = Console(width=80, file=io.StringIO(), force_terminal=terminal, color_system=colours)
    print_result(results[0], console)
    print_comparison(results, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_tables_fit_80_columns_and_are_plain_without_a_terminal() -> None:
    first, *others = samples.realistic()
    gpu = replace(first.gpu_seconds, serving=9_876_543.0)
    large = replace(first, policy="p" * 300, gpu_seconds=gpu, starts=12_345, changes=12_345)

    for lines in (printed(first, *others), printed(large, *others)):
        assert max(map(len, lines)) <= 80
        assert "\x1b" not in "".join(lines)
    assert any("\x1b" in line for line in printed(first, terminal=True))


def test_every_policy_has_a_line_with_its_figures() -> None:
    results = samples.realistic()
    lines = printed(*results)

    static, total = results[2], results[0].gpu_seconds.total
    cells = next(line for line in lines if line.startswith("static:8")).split()[1:]
    assert cells[:3] == [
        f"{static.gpu_seconds.total:,.0f}",
        f"{static.gpu_seconds.total / (0.8 * total):.2f}",
        f"{total / static.gpu_seconds.total:.2f}",
    ]
    first_words = [line.split()[0] for line in lines if line.strip()]
    order = [first_words.index(name) for name in ("SLO", "latency", "cost", "fleet", "Policies")]
    assert order == sorted(order)


def test_names_are_printed_without_markup_or_terminal_codes() -> None:
    lines = printed(replace(samples.empty(), policy="[red]x[/red]\x1b[31m", trace="[bold]"))

    assert lines[0] == "[red]x[/red]�[31m on [bold]"
    assert "The trace has no requests" in "\n".join(lines)
    assert "nan" not in "\n".join(lines)


def test_unanswered_requests_and_errors_are_printed_if_any() -> None:
    first = samples.realistic()[0]
    lines = [" ".join(line.split()) for line in printed(replace(first, unanswered=12, policy_errors=3))]

    assert "never answered" not in "\n".join(printed(first))
    assert "never answered 12" in lines
    assert "decisions that raised 3" in lines


# -- the page


def test_the_page_loads_nothing() -> None:
    text = page(samples.realistic(), main=1)
    found = Elements(text)

    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert [value for name, value in found.attributes if name in ("src", "href")] == ["data:,", "#timeline"]
    assert "default-src 'none'" in text
    assert found.tags.count("script") == 2
    data = found.document()
    assert data["main"] == 1
    assert "signals" not in data["results"][0]["decisions"][0]
    assert "there was nothing to attain" in page([samples.empty()])


def test_a_name_cannot_end_the_script_of_the_page() -> None:
    first = samples.realistic()[0]
    decision = {**first.decisions[0], "reason": HOSTILE}
    peers = {HOSTILE: samples.peer(1, 1, 1)}
    text = page([replace(first, policy=HOSTILE, trace=HOSTILE, decisions=[decision], peers=peers)])
    found = Elements(text)

    assert found.tags.count("script") == 2
    assert "alert(1)</script>" not in text
    shown = found.document()["results"][0]
    assert (shown["policy"], shown["trace"], shown["decisions"][0]["reason"]) == (HOSTILE,) * 3
