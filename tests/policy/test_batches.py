"""Batches in decisions: replicas are added only for a window at risk, and only if a knob says so."""

from dataclasses import replace
from typing import Any

import pytest

from serve_app.policy.reports import Snapshot
from serve_app.settings.knobs import Window
from serve_app.wire.batches import BatchBacklog
from tests.policy.build import NOW, PolicyLoop, engine, ingress, snapshot
from tests.policy.test_background import DAY, NIGHT, background, knobs

HOUR_S = 3600.0


def left(*due: tuple[int, float], bytes_: float = 4.0, **more: Any) -> BatchBacklog:
    """Batches of lines with as many prompt tokens as `bytes_` / 4, each with the seconds until its end."""
    lines = sum(each for each, _ in due)
    return BatchBacklog(
        len(due),
        lines,
        body_bytes=int(lines * bytes_),
        due=tuple((each, NOW + seconds) for each, seconds in due),
        **more,
    )


def fleet(backlog: BatchBacklog, replicas: int) -> Snapshot:
    """Idle replicas, with one line of the batches in the queue of the ingress."""
    held = ingress(background_held_requests=1, background_held_bytes=4)
    return snapshot(*[engine()] * replicas, at={"i0": held}, batches=backlog)


HEAVY = 1e6
"""Bytes of a line whose 250,000 prompt tokens take 12.5 s."""


def test_a_batch_adds_no_replica_by_default() -> None:
    late = left((10_000, HOUR_S), bytes_=HEAVY, lines_per_s=0.1, late=1, late_s=1e5)

    assert PolicyLoop(knobs(background_keep_s=0)).decide(fleet(late, 0)).target == 0
    assert PolicyLoop(knobs()).decide(fleet(late, 1)).target == 1


def test_a_batch_gets_the_replicas_that_meet_its_window() -> None:
    """1,000 lines of 12.5 s are the work of 3.5 replicas for an hour."""
    loop = PolicyLoop(knobs(background_deadlines=True))

    decision = loop.decide(fleet(left((1_000, HOUR_S), bytes_=HEAVY), 1))

    assert (decision.target, decision.binding) == (4, "background")
    assert "The work of batches takes 3.5 replicas until their completion windows end." in decision.reason


def test_a_batch_waits_for_those_with_an_earlier_end() -> None:
    loop = PolicyLoop(knobs(background_deadlines=True))
    both = left((1_000, HOUR_S), (1_000, 2 * HOUR_S), bytes_=HEAVY)
    far = left((10, HOUR_S), (1_990, 2 * HOUR_S), bytes_=HEAVY)

    assert loop.decide(fleet(both, 1)).target == 4
    assert PolicyLoop(loop.knobs).decide(fleet(far, 1)).target == 4


@pytest.mark.parametrize(
    ("seconds", "hours", "target"),
    [(24 * HOUR_S, (), 0), (2000.0, (), 1), (2000.0, (NIGHT,), 1), (2000.0, (DAY,), 0)],
)
def test_a_batch_wakes_a_model_when_it_must(seconds: float, hours: tuple[Window, ...], target: int) -> None:
    """100 lines of 12.5 s take one replica 1,250 s."""
    loop = PolicyLoop(knobs(background_deadlines=True, background_hours=hours))

    assert loop.decide(fleet(left((100, seconds), bytes_=HEAVY), 0)).target == target


@pytest.mark.parametrize(
    ("lines", "seconds", "replicas", "target"),
    [
        (14, 61.0, 3, 3),  # 175 s of work, which three replicas do in time
        (40, 61.0, 3, 3),  # 500 s of work, for which a new replica would be ready in the last second
        (40, 20.0, 3, 3),
        (40, 61.0, 0, 0),
        (1, 80.0, 0, 1),  # 12.5 s of work, which a replica of its own still reaches
        (1, 70.0, 0, 0),
        (40, 100.0, 3, 9),  # 207 s more than three replicas do, in the 40 s of new ones
    ],
)
def test_work_no_new_replica_reaches_in_time_asks_for_none(
    lines: int, seconds: float, replicas: int, target: int
) -> None:
    """A start takes 60 s."""
    loop = PolicyLoop(knobs(background_deadlines=True, background_keep_s=0, max_replicas=32))

    assert loop.decide(fleet(left((lines, seconds), bytes_=HEAVY), replicas)).target == target


def test_replicas_that_start_for_a_batch_ask_for_no_more() -> None:
    """24 lines are 300 s of work: five replicas for 60 s. The last of their starts leaves 45 s."""
    loop = PolicyLoop(knobs(background_deadlines=True, max_replicas=32))
    held = {"i0": ingress(background_held_requests=1, background_held_bytes=4)}
    target, targets = 0, []
    for second in range(75):
        work = left((24, 120.0 - second), bytes_=HEAVY)
        work = replace(work, due=((24, NOW + 120.0),))
        target = loop.decide(snapshot(at=held, target=target, ready=0, batches=work)).target
        targets.append(target)

    assert set(targets) == {6}


def test_one_short_line_wakes_a_model_before_its_window_ends() -> None:
    loop = PolicyLoop(knobs(background_deadlines=True))

    assert loop.decide(fleet(left((1, 110.0)), 0)).target == 1


def test_a_replica_that_runs_for_a_batch_stays_until_it_is_done() -> None:
    loop = PolicyLoop(knobs(background_deadlines=True, background_keep_s=0))

    assert loop.decide_for(1000, fleet(left((100, 24 * HOUR_S), bytes_=HEAVY), 1)).target == 1
    assert loop.decide_for(1000, snapshot(engine())).target == 0


def test_replicas_of_other_lanes_do_the_work_if_they_are_enough() -> None:
    loop = PolicyLoop(knobs(background_deadlines=True, min_replicas=5))

    decision = loop.decide(fleet(left((1_000, HOUR_S), bytes_=HEAVY), 5))

    assert (decision.target, background(decision).replicas) == (5, 0)


def test_lines_that_are_not_sent_yet_count_as_work() -> None:
    loop = PolicyLoop(knobs())

    with_batch = loop.decide(fleet(left((101, HOUR_S), bytes_=HEAVY, in_flight=1), 1))
    without = PolicyLoop(loop.knobs).decide(fleet(BatchBacklog(), 1))

    more_s = with_batch.signals["background_work_s"] - without.signals["background_work_s"]
    assert 1250 < more_s < 1300
    assert (with_batch.signals["batch_lines"], with_batch.signals["batches_late"]) == (101, 0)


@pytest.mark.parametrize(
    ("backlog", "words"),
    [
        (left((1_200, HOUR_S)), "1 batch has 1,200 lines left."),
        (
            left((1, HOUR_S), (1, HOUR_S), lines_per_s=3.14),
            "2 batches have 2 lines left, and 3.1 lines/s are answered.",
        ),
        (
            left((5, HOUR_S), lines_per_s=0.5, late=1, late_s=60.0),
            "0.5 lines/s are answered. At this rate, 1 batch would miss the completion window by 60 s.",
        ),
        (
            left((5, HOUR_S), (5, HOUR_S), lines_per_s=0.0, late=2, late_s=None),
            "At this rate, 2 batches would miss the completion window.",
        ),
    ],
)
def test_a_decision_says_what_is_left_of_batches(backlog: BatchBacklog, words: str) -> None:
    decision = PolicyLoop(knobs()).decide(fleet(backlog, 1))

    assert words in background(decision).why
