"""The rows of losses in a row, from made-up streams."""

from dataclasses import replace

import pytest

from benchmarks.chaos.continuity import Row, goals, judge, report
from benchmarks.chaos.trace import Event, Stream, Trace

EVENTS = [
    Event(10.0, "engine-replica", "kill", 1),
    Event(20.0, "engine-core", "stop", 2),
    Event(30.0, "engine-replica", "kill", 3),
]


def stream(begin_s: float, end_s: float, *moves: tuple[float, float], **more: object) -> Stream:
    whole = Stream("sea", begin_s, end_s, "whole", text="Waves", answers=1, roles=1, moves=list(moves))
    return replace(whole, **more)  # type: ignore[arg-type]


STREAMS = [
    stream(0.0, 5.0),
    stream(6.0, 15.0, (9.9, 10.3)),
    stream(8.0, 25.0, (10.0, 10.4), (20.1, 24.6)),
    stream(16.0, 26.0, (20.0, 24.0), text="Weaves"),
    stream(18.0, 29.0),
    stream(22.0, 31.0, outcome="error", error="replica_lost", text="Wa"),
    stream(32.0, 34.0),
]


def found(*streams: Stream) -> list[Row]:
    return judge(Trace(events=EVENTS, streams=list(streams or STREAMS)))


def test_each_loss_has_the_streams_nearest_to_it() -> None:
    killed, stopped, none, _ = found()
    assert (killed.kind, killed.losses, killed.streams, killed.moves) == ("engine-replica killed", 2, 3, 2)
    assert killed.pauses_s == pytest.approx([0.4, 0.4])
    assert (killed.broken, killed.differing) == (1, 0)
    assert (stopped.kind, stopped.losses, stopped.streams, stopped.moves) == ("engine-core stopped", 1, 3, 2)
    assert (stopped.broken, stopped.differing) == (0, 1)
    assert none.streams == 2


def test_the_time_of_detection_is_no_part_of_a_pause() -> None:
    assert found()[1].pauses_s == pytest.approx([1.0, 0.5])


def test_every_stream_counts_once_in_the_last_row() -> None:
    total = found()[-1]
    assert (total.kind, total.losses, total.streams, total.moves) == ("all", 3, 7, 4)
    assert (total.broken, total.differing) == (1, 1)


def test_one_broken_stream_or_a_long_pause_misses_a_goal() -> None:
    assert list(goals(found()).values()) == [False, False, True, True]
    assert list(goals(found(STREAMS[0], STREAMS[1])).values()) == [True, True, True, True]
    slow = found(STREAMS[0], stream(6.0, 19.0, (10.0, 16.0)))
    assert list(goals(slow).values()) == [True, True, False, False]


def test_the_report_names_each_stream_that_missed() -> None:
    text, passed = report(Trace(events=EVENTS, streams=STREAMS))
    assert not passed
    assert "0.40 / 0.40 / 0.40" in text
    assert "differs in text" in text
    assert "- sea, 12.0 to 21.0 s, 0 moves: error after 2 characters: replica_lost" in text
