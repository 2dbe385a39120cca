"""Rows of the table from traces made by hand: one engine's process beside another's, and what clients saw."""

import pytest

from benchmarks.chaos.engines import Engines, pairs
from benchmarks.chaos.observed import Event, Look, Probe, Process, Ready, Stream, Trace
from benchmarks.chaos.roles import Signal
from benchmarks.chaos.verdicts import Row, longest_gap, rows

STEP = 0.2


def times(begin: float, end: float) -> list[float]:
    return [begin + number * STEP for number in range(round((end - begin) / STEP))]


def engine(number: int, *, runs: bool = True, core: bool = True) -> list[Process]:
    replica = Process(number, number, "engine-replica", "", float(number), runs)
    return [replica, Process(number + 1, number, "engine-core", "", float(number), runs)][: 1 + core]


def look(at: float, *engines: list[Process]) -> Look:
    return Look(at, tuple(process for one in engines for process in one))


def ready(at: float, said: str, replicas: int = 0, took: float = 0.01) -> Ready:
    return Ready(at, at + took, said, replicas)  # type: ignore[arg-type]


def trace(**seen: object) -> Trace:
    """Ten seconds of two engines and good answers, an event at 0, and what differs."""
    found = Trace(
        events=[Event(0.0, "engine-core", "kill", (21,))],
        ends_s=[10.0],
        notes=[""],
        back_s=[5.0],
        answers=[Probe(at, at + 0.05, True) for at in times(-5, 10)],
        healths=[Probe(at, at + 0.01, True) for at in times(-5, 10)],
        readies=[ready(at, "up", 2) for at in times(-5, 10)],
        looks=[look(at, engine(10), engine(20)) for at in times(-5, 10)],
    )
    for name, value in seen.items():
        setattr(found, name, value)
    return found


def only(found: Trace) -> Row:
    (row,) = rows(found)
    return row


def test_nothing_lost_keeps_every_goal() -> None:
    row = only(trace(streams=[Stream(-1.0, 4.0, "whole")]))
    assert row.missed == ()
    assert row.streams == {"whole": 1}
    assert row.unanswered_s == pytest.approx(0.2)
    assert row.ready_wrong_s == 0


def test_streams_count_where_they_ended() -> None:
    before, within, after = (Stream(-9.0, end, "told") for end in (-1.0, 1.0, 11.0))
    assert only(trace(streams=[before, within, after])).streams == {"told": 1}


@pytest.mark.parametrize(
    ("role", "missed"), [("engine-core", True), ("controller", True), ("haproxy", False), ("ingress", False)]
)
def test_a_cut_stream_is_a_miss_unless_its_connection_was_to_the_dead(role: str, missed: bool) -> None:
    found = trace(streams=[Stream(-1.0, 1.0, "cut")], events=[Event(0.0, role, "kill", (99,))])
    assert ("cut" in only(found).missed) is missed


def test_a_hung_stream_is_a_miss_and_a_told_one_is_not() -> None:
    assert "cut" in only(trace(streams=[Stream(-1.0, 9.0, "hung")])).missed
    assert "cut" not in only(trace(streams=[Stream(-1.0, 1.0, "told")])).missed


def test_three_seconds_without_an_answer_are_a_miss() -> None:
    found = trace(answers=[Probe(at, at + 0.05, not 1 < at < 4) for at in times(-5, 10)])
    row = only(found)
    assert row.unanswered_s == pytest.approx(3.2, abs=0.25)
    assert row.failed in (14, 15)
    assert row.missed == ("answers",)


def test_one_request_left_waiting_is_a_miss_though_others_are_answered() -> None:
    found = trace()
    found.answers.append(Probe(1.0, 4.5, True))
    row = only(found)
    assert row.unanswered_s < 1
    assert row.slowest_s == pytest.approx(3.5)
    assert row.missed == ("answers",)


def test_a_stopped_engine_may_keep_a_request_for_five_seconds() -> None:
    found = trace(events=[Event(0.0, "engine-core", "stop", (21,))])
    found.answers.append(Probe(0.0, 4.5, True))
    assert only(found).missed == ()


def test_time_without_any_engine_is_nobodys_fault() -> None:
    found = trace(
        looks=[look(at, *([] if 1 < at < 6 else [engine(10)])) for at in times(-5, 10)],
        readies=[ready(at, "down" if 1 < at < 6 else "up", int(not 1 < at < 6)) for at in times(-5, 10)],
        answers=[Probe(at, at + 0.05, not 1 < at < 6) for at in times(-5, 10)],
    )
    row = only(found)
    assert row.unanswered_all_s == pytest.approx(5.2, abs=0.25)
    assert row.unanswered_s < 0.5
    assert row.missed == ()


def test_a_dead_engine_told_as_up_for_longer_than_two_seconds_is_a_lie() -> None:
    def told(seconds: float) -> Row:
        return only(
            trace(
                looks=[look(at, engine(10), engine(20, core=at < 0)) for at in times(-5, 10)],
                readies=[ready(at, "up", 2 if at < seconds else 1) for at in times(-5, 10)],
            )
        )

    assert told(1.5).missed == ()
    assert told(6.0).missed == ("ready",)
    assert told(6.0).ready_wrong_s == pytest.approx(6.0, abs=0.5)


def test_nothing_while_nothing_is_served_is_the_truth() -> None:
    """HAProxy is gone: requests are refused, and `/ready` with them. That costs answers, and is no lie."""
    row = only(
        trace(
            readies=[ready(at, "nothing" if 0 < at < 7 else "up", 2) for at in times(-5, 10)],
            answers=[Probe(at, at + 0.01, not 0 < at < 7.2) for at in times(-5, 10)],
        )
    )
    assert row.ready_wrong_s <= 0.3
    assert row.missed == ("answers",)


def test_down_while_requests_are_answered_is_a_lie() -> None:
    row = only(trace(readies=[ready(at, "down" if 0 < at < 7 else "up", 2) for at in times(-5, 10)]))
    assert row.missed == ("ready",)


def test_down_while_no_engine_lives_is_the_truth_and_up_is_not() -> None:
    gone = [look(at, *([engine(10)] if at < 0 else [])) for at in times(-5, 10)]
    failed = [Probe(at, at + 0.05, at < 0) for at in times(-5, 10)]
    down = [ready(at, "up" if at < 0 else "down", int(at < 0)) for at in times(-5, 10)]
    assert only(trace(looks=gone, answers=failed, readies=down)).missed == ()
    up = [ready(at, "up", 1) for at in times(-5, 10)]
    assert only(trace(looks=gone, answers=failed, readies=up)).missed == ("ready",)


def test_an_answer_that_takes_longer_than_a_second_is_a_miss_whatever_it_says() -> None:
    found = trace()
    found.readies.append(ready(3.0, "up", 2, took=1.5))
    assert only(found).missed == ("ready",)


def test_a_slow_health_answer_in_a_hundred_is_allowed_and_three_are_not() -> None:
    def slow(count: int) -> Row:
        return only(
            trace(healths=[Probe(n * 0.1, n * 0.1 + (0.4 if n < count else 0.01), True) for n in range(100)])
        )

    assert slow(1).missed == ()
    assert slow(3).missed == ("health",)


@pytest.mark.parametrize(("role", "restarted"), [("controller", 2), ("engine-core", 1)])
def test_engines_started_anew_are_counted_though_the_old_ones_still_drain(role: str, restarted: int) -> None:
    later = [look(at, engine(10), engine(20), engine(30), engine(40)) for at in times(5, 10)]
    found = trace(events=[Event(0.0, role, "kill", (21,))])
    found.looks = [one for one in found.looks if one.at_s < 5] + later
    row = only(found)
    assert row.engines_restarted == restarted
    assert "engines" in row.missed


def test_what_begins_after_an_event_is_not_an_engine_before_ready_counts_it() -> None:
    looks = [look(at, engine(10), *([engine(20)] if at > 0 else [])) for at in times(-5, 20)]
    readies = [ready(at, "up", 1 if at < 10 else 2) for at in times(-5, 20)]
    engines = Engines(looks, readies, [])
    assert set(engines.between(5.0, 9.0)) == {1}
    assert set(engines.between(11.0, 19.0)) == {2}


def test_the_only_engine_counts_once_a_request_is_answered() -> None:
    looks = [look(at, *([engine(10)] if at > 0 else [])) for at in times(-5, 20)]
    engines = Engines(looks, [], [Probe(12.0, 12.1, True)])
    assert set(engines.between(5.0, 12.0)) == {0}
    assert set(engines.between(13.0, 19.0)) == {1}
    assert engines.seconds_without(-4.0, 20.0) == pytest.approx(16.2, abs=0.3)


def test_a_stopped_process_is_no_engine() -> None:
    assert pairs(look(0.0, engine(10), engine(20, runs=False))) == {(10, 11)}


def test_a_gap_that_began_before_the_event_counts_from_the_event() -> None:
    engines = Engines([look(-9.0, engine(10))], [], [])
    answers = [Probe(-8.0, -7.9, True), Probe(1.0, 1.1, True)]
    assert longest_gap(answers, engines, 0.0, 2.0)[1] == pytest.approx(1.1)


@pytest.mark.parametrize("signal", ["kill", "stop"])
def test_each_event_has_its_own_row(signal: Signal) -> None:
    found = trace(
        events=[Event(0.0, "controller", signal, (5,)), Event(4.0, "gcs", signal, (6,))],
        ends_s=[4.0, 10.0], notes=["", "ended"], back_s=[1.0, None],
    )  # fmt: skip
    first, second = rows(found)
    assert (first.role, second.role, second.note, second.back_s) == ("controller", "gcs", "ended", None)
    assert second.at_s - first.at_s == pytest.approx(4.0)


def test_an_interrupted_event_is_shown_as_far_as_it_was_seen() -> None:
    found = trace(streams=[Stream(-1.0, 4.0, "told")], ends_s=[], notes=[], back_s=[])
    found.interrupt()
    row = only(found)
    assert row.streams == {"told": 1}
    assert row.note == "interrupted after 9.8 s"
    found.interrupt()
    assert len(found.ends_s) == 1
