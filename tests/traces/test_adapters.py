"""LoRA adapters of recorded requests, and adapters that are drawn."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.traces.files import PLAIN, json_lines, log_line, written
from traces import TraceError, open_trace
from traces.trace import Trace, join
from traces.zipf_adapters import WithAdapters

START = 1_763_712_000.0


def adapters(trace: Trace) -> list[int]:
    """The adapter of every request; 0 for all where a trace has none."""
    whole = join(list(trace.chunks()))
    return whole.adapters.tolist() or [0] * len(whole)


def log(tmp_path: Path, *names: Any) -> Path:
    """A request log with a request a second. None: the line has no adapter."""
    rows = [
        log_line(START + second) | ({} if name is None else {"adapter": name})
        for second, name in enumerate(names)
    ]
    return written(tmp_path, json_lines(rows), "a.jsonl")


def test_request_log_has_the_adapter_of_each_request(tmp_path: Path) -> None:
    trace = open_trace(log(tmp_path, None, "sql", "support", "sql"))

    assert adapters(trace) == [0, 1, 2, 1]
    assert adapters(trace) == [0, 1, 2, 1]
    assert adapters(open_trace(log(tmp_path, None, None))) == [0, 0]


def test_scaling_keeps_adapters(tmp_path: Path) -> None:
    names = ["sql" if second % 2 else None for second in range(20)]

    assert Counter(adapters(open_trace(log(tmp_path, *names), rate=2.0, start_s=2.0))) == {0: 18, 1: 18}


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["sql", 7], "line 2: adapter = 7: must be a string"),
        ([f"a{number}" for number in range(1001)], "line 1001: adapter = 'a1000': there are more than 1000"),
    ],
)
def test_wrong_adapter_is_named(tmp_path: Path, names: list[Any], told: str) -> None:
    with pytest.raises(TraceError, match=told):
        adapters(open_trace(log(tmp_path, *names)))


def test_drawn_adapters_follow_zipfs_law(tmp_path: Path) -> None:
    rows = "\n".join(f"{second},10,5" for second in range(20_000))
    plain = open_trace(written(tmp_path, PLAIN + rows + "\n", "a.csv"))
    drawn = WithAdapters.parse(plain, "200@50%")
    found = adapters(drawn)
    counts = Counter(found)

    assert found == adapters(drawn)
    assert counts[0] == pytest.approx(10_000, rel=0.05)
    assert max(counts) <= 200
    assert counts[1] == pytest.approx(2 * counts[2], rel=0.1)
    assert counts[1] == pytest.approx(10 * counts[10], rel=0.3)
