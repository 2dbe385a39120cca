import json
from pathlib import Path

import pytest

from benchmarks.routing import __main__ as command
from benchmarks.routing.__main__ import FLEETS, Job, Run, execute, tables
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


def test_tables_show_the_cheapest_fleet_that_attains_the_goal(trace: Path) -> None:
    jobs = [
        Job(trace, profile, n, way) for profile, sizes in FLEETS.items() for n in sizes for way in ROUTINGS
    ]
    made = {job: Run(720.0 * job.replicas, 1.0 if job.replicas > 4 else 0.5, "100 %, 1 s") for job in jobs}

    text = tables({**made, jobs[0]: Run(3600.0, 0.5, "50 %, 2 s")}, [trace])

    assert "chats, a100-80gb\n\n| replicas" in text
    a100, h100 = (part.splitlines() for part in text.split("h100"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (a100[4], a100[-3], h100[-1])]
    assert rows[0][:3] == ["5", "50 %, 2 s", "100 %, 1 s"]
    assert rows[1][:3] == ["GPU-s to 99%", "4,320", "3,600"]
    assert rows[2][:3] == ["GPU-s to 99%", "3,600", "3,600"]


@pytest.mark.long
def test_our_routing_finds_more_cached_tokens_than_two_choices(trace: Path) -> None:
    shares = [
        int(execute(Job(trace, "a100-80gb", 4, routing)).shown.split()[-2])
        for routing in ("prefix-aware", "two-choices")
    ]

    assert shares[0] > 1.2 * shares[1] > 0


def test_missing_traces_and_failed_replays_are_reported(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main([str(tmp_path / "none.jsonl")])
    assert "none.jsonl: no such file" in capsys.readouterr().err

    trace.write_text("no trace")
    assert command.main([str(trace)]) == 1
    assert "a100-80gb x 5 prefix-aware: failed: LineError" in capsys.readouterr().out
