"""The page of routings, and the replays behind it."""

import json
from pathlib import Path

import pytest

from benchmarks.routing import __main__ as command
from benchmarks.routing import runs
from benchmarks.routing.page import page
from benchmarks.routing.runs import FLEETS, Job, RoutingRun, execute, plan
from replay.fleet.conditions import ROUTINGS


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A minute of four conversations, whose turns share all blocks but the last."""
    file = tmp_path / "chats.jsonl"
    lines = [
        {
            "timestamp": 1000 * second,
            "input_length": 512 * (3 + second // 8),
            "output_length": 20,
            "hash_ids": [100 * (second % 4) + block for block in range(3 + second // 8)],
        }
        for second in range(60)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def made(attainment: float, ttft_ok: float = 1.0) -> RoutingRun:
    return RoutingRun(7200.0, attainment, ttft_ok, 0.5, 1.0, 0.25, 0.1)


def test_ours_finds_more_in_caches_than_a_routing_that_does_not_know_them(trace: Path) -> None:
    shares = {
        routing: execute(Job(trace, "a100-80gb", 4, routing)).cached_share
        for routing in ("prefix-aware", "two-choices")
    }

    assert shares["prefix-aware"] > 1.2 * shares["two-choices"] > 0


def test_every_routing_is_replayed_on_every_fleet(trace: Path) -> None:
    jobs = plan([trace])

    assert len(jobs) == len(set(jobs)) == len(ROUTINGS) * sum(map(len, FLEETS.values()))


def test_the_page_names_where_ours_is_beaten(trace: Path) -> None:
    jobs = plan([trace])
    equal = {job: made(1.0) for job in jobs}
    text, best = page(equal, "python -m it", {"cores": "2"}, {"python": "3"})
    assert best
    assert "nowhere" in text
    assert "100.0 %, 100.0 %, 0.50 s, 25 %" in text
    assert "| GPU-s to 99% |" in text

    lost = Job(trace, "h100", 4, "tokens")
    text, best = page({**equal, lost: made(1.0, 1.01)}, "python -m it", {}, {})
    assert not best
    assert "chats, h100 x 4: tokens" in text
    text, _ = page({job: made(0.5) for job in jobs}, "python -m it", {}, {})
    assert text.count("more |") == 2 * len(ROUTINGS)


def test_a_missing_trace_and_a_failed_replay_are_told(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main([str(tmp_path / "none.jsonl")])
    assert "none.jsonl: no such file" in capsys.readouterr().err

    monkeypatch.setattr(runs, "FLEETS", {"a100-80gb": (1,)})
    trace.write_text("no trace")
    assert command.main([str(trace), "--page", str(tmp_path / "page.md")]) == 1
    assert "a100-80gb x 1 prefix-aware" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()
