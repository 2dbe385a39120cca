"""Lanes of recorded requests."""

from pathlib import Path
from typing import Any

import pytest

from serve_app.settings.caller import LANES
from tests.traces.files import PLAIN, json_lines, log_line, written
from traces import TraceError, open_trace
from traces.trace import join

START = 1_763_712_000.0
WITH_LANE = PLAIN.replace("\n", ",lane\n")


def lanes(path: Path, **options: Any) -> list[str]:
    """The lane of every request; all are `standard` where a trace has none."""
    whole = join(list(open_trace(path, **options).chunks()))
    return [LANES[place] for place in whole.lanes] or ["standard"] * len(whole)


def test_request_log_has_the_lane_of_each_request(tmp_path: Path) -> None:
    rows = [{**log_line(START + 2), "lane": "interactive"}, log_line(START), log_line(START + 1)]
    rows[2]["lane"] = "background"
    rows[2]["sequences"] = 2

    assert lanes(written(tmp_path, json_lines(rows), "a.jsonl")) == [
        "standard", "background", "background", "interactive",
    ]  # fmt: skip


def test_plain_trace_may_have_a_lane_column(tmp_path: Path) -> None:
    path = written(tmp_path, WITH_LANE + "0,10,5,background\n1,10,5,standard\n", "a.csv")

    assert lanes(path) == ["background", "standard"]


def test_scaling_keeps_lanes(tmp_path: Path) -> None:
    rows = [f"{second},10,5,{'background' if second % 2 else 'interactive'}" for second in range(20)]
    path = written(tmp_path, WITH_LANE + "\n".join(rows) + "\n", "a.csv")

    found = lanes(path, rate=2.0, time=2.0, start_s=2.0, max_input_tokens=5)
    assert (found.count("background"), found.count("interactive")) == (18, 18)


@pytest.mark.parametrize("lane", ["batch", "", 7])
def test_unknown_lane_is_named_with_the_known_ones(tmp_path: Path, lane: object) -> None:
    path = written(tmp_path, json_lines([{**log_line(START), "lane": lane}]), "a.jsonl")

    with pytest.raises(TraceError, match=r"a\.jsonl, line 1: lane = .* one of interactive, standard, backgr"):
        lanes(path)


def test_missing_lane_is_named_with_its_column(tmp_path: Path) -> None:
    path = written(tmp_path, WITH_LANE + "0,10,5\n", "a.csv")

    with pytest.raises(TraceError, match="3 columns, and lane is column 4"):
        lanes(path)
