"""What a run looks like while it goes on."""

import io

from rich.console import Console

from loadtests.live_view import Progress, panel, view_for
from loadtests.record import Outcome, Record, Sample

DECISION = {"at": 5.0, "kind": "change", "old_target": 0, "new_target": 3, "reason": "queue: 24 wait"}


def record(index: int, outcome: Outcome = "answered", ended_s: float = 2.0) -> Record:
    return Record(index, "a", "tide", 1.0, 1.002, ended_s, outcome, pieces_s=(1.1, 1.2), output_tokens=2)


def running(at_s: float = 10.0) -> Progress:
    progress = Progress([float(i) for i in range(30)], 30.0, "running", at_s=at_s)
    progress.samples = {"tide": Sample(9.0, "tide", target=3, ready=1, starting=2, held=4, running=7)}
    return progress


def written(terminal: bool = False) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=100, color_system=None), text


def text_of(progress: Progress) -> str:
    console, text = written()
    console.print(panel("burst", progress))
    return text.getvalue()


def test_progress_counts_due_open_and_failed_requests() -> None:
    progress = running(at_s=9.5)
    progress.add([record(0), record(1, "left"), record(2, "rejected"), record(3, "broken")])

    assert (progress.due, progress.open, progress.errors) == (10, 6, 2)
    assert round(progress.worst_lag_s, 6) == 0.002


def test_a_closed_loop_counts_ended_requests_as_due() -> None:
    progress = Progress(stage="running", at_s=10.0)
    progress.add([record(0)])

    assert (progress.due, progress.open) == (1, 0)


def test_the_panel_shows_requests_replicas_and_the_newest_decision() -> None:
    progress = running()
    progress.add([record(0), record(1, "failed")])
    progress.decision = DECISION
    progress.problem = "/metrics answers 503"

    told = text_of(progress)

    assert "burst  10 of 30 s" in told
    assert "11 sent, 1 answered, 9 open, 1 errors" in told
    assert "TTFT 100 ms median, 100 ms at P95" in told
    assert "1 ready, 2 starting (target 3)  tide" in told
    assert "4 queued for a cold start, 0 waiting, 7 running" in told
    assert "at most 2.0 ms late" in told
    assert "0 -> 3 replicas: queue: 24 wait" in told
    assert "cannot read the server's state: /metrics answers 503" in told


def test_lines_come_every_ten_seconds_and_at_each_decision() -> None:
    console, text = written()
    view = view_for(console, "burst")
    progress = running(at_s=0.0)
    for tick in range(48):  # twelve seconds
        progress.at_s = tick / 4
        if tick == 20:
            progress.decision = DECISION
        view.show(progress)

    lines = text.getvalue().splitlines()
    assert [line.split("s", 1)[0].strip() for line in lines if " sent" in line] == ["0.0", "10.0"]
    assert sum("0 -> 3 replicas" in line for line in lines) == 1
    assert "1 ready, 2 starting (target 3), 4 queued for a cold start" in lines[0]


def test_the_live_view_leaves_nothing_behind() -> None:
    console, text = written(terminal=True)

    with view_for(console, "burst") as view:
        view.show(running())

    assert "burst" in text.getvalue()
    assert text.getvalue().endswith("\x1b[2K")
