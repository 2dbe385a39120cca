"""What each event cost its clients, and whether the goals hold. Pure: a trace in, rows out."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from benchmarks.chaos.engines import Engines
from benchmarks.chaos.observed import INTERVAL_S, Event, Look, Probe, Ready, Trace
from benchmarks.chaos.roles import BY_NAME, ENGINE_CORE, ENGINE_REPLICA, HEALTH_P99_S, Bounds

_PROMPT_S = 1.0
"""What was answered within this shows that the server served when it was asked."""
GOALS = ("cut", "answers", "ready", "health", "engines")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Times in seconds."""

    role: str
    signal: str
    node: str
    at_s: float
    """Since the start of the run."""
    streams: Mapping[str, int]
    """By outcome: those that ended while the event was watched."""
    longest_pause_s: float
    """The longest pause of a stream that was not cut."""
    unanswered_s: float
    """The longest time without a new answer, less what no engine was there to give."""
    unanswered_all_s: float
    """The same, engines or not."""
    slowest_s: float
    """The longest that one new request waited until it was answered, less the time without an engine."""
    failed: int
    """New requests that were refused or answered with an error."""
    ready_wrong_s: float
    """The longest stretch in which `/ready` said, every time, what was not so."""
    ready_slowest_s: float
    health_p50_s: float
    health_p99_s: float
    health_max_s: float
    health_failed: int
    engines_restarted: int
    """Engine replicas started anew, beside the one in place of that attacked."""
    back_s: float | None
    """Until every role and every engine ran again and answers came; None: they did not."""
    note: str
    goals: Mapping[str, bool]

    @property
    def missed(self) -> tuple[str, ...]:
        """The goals that do not hold."""
        return tuple(goal for goal in GOALS if not self.goals.get(goal, True))


def rows(trace: Trace) -> list[Row]:
    """A row for each event: what ended, was sent, or was said before the next event."""
    looks = sorted(trace.looks, key=lambda look: look.at_s)
    engines = Engines(trace.looks, trace.readies, trace.answers)
    begin_s = looks[0].at_s if looks else 0.0
    return [
        _row(trace, engines, number, trace.events[number], end_s, begin_s)
        for number, end_s in enumerate(trace.ends_s)
    ]


def _row(trace: Trace, engines: Engines, number: int, event: Event, end_s: float, begin_s: float) -> Row:
    bounds = BY_NAME[event.role].bounds(event.signal)
    streams = [one for one in trace.streams if event.at_s <= one.ended_s < end_s]
    outcomes: Counter[str] = Counter(one.outcome for one in streams)
    answers = [one for one in trace.answers if event.at_s <= one.ended_s and one.sent_s < end_s]
    readies = [one for one in trace.readies if event.at_s <= one.sent_s < end_s]
    healths = [one for one in trace.healths if event.at_s <= one.sent_s < end_s]
    gap, gap_all = longest_gap(trace.answers, engines, event.at_s, end_s)
    took = sorted(one.took_s for one in healths if one.ok)
    row = Row(
        role=event.role,
        signal=event.signal,
        node=event.node,
        at_s=event.at_s - begin_s,
        streams=dict(outcomes),
        longest_pause_s=max((one.longest_pause_s for one in streams if one.outcome != "cut"), default=0.0),
        unanswered_s=gap,
        unanswered_all_s=gap_all,
        slowest_s=max((_waited_s(one, engines, end_s) for one in answers), default=0.0),
        failed=sum(not one.ok for one in answers),
        ready_wrong_s=longest_lie(readies, trace.answers, engines),
        ready_slowest_s=max((one.took_s for one in readies), default=0.0),
        health_p50_s=_percentile(took, 0.5),
        health_p99_s=_percentile(took, 0.99),
        health_max_s=took[-1] if took else 0.0,
        health_failed=sum(not one.ok for one in healths),
        engines_restarted=engines_restarted(trace.looks, event, end_s),
        back_s=trace.back_s[number],
        note=trace.notes[number],
        goals={},
    )
    return _judged(row, bounds, ends_node=BY_NAME[event.role].ends_node or event.role == "node")


def _judged(row: Row, bounds: Bounds, *, ends_node: bool) -> Row:
    gone = row.streams.get("cut", 0) + row.streams.get("hung", 0)
    goals = {
        "cut": bounds.cut or not gone,
        "answers": max(row.unanswered_s, row.slowest_s) <= bounds.unanswered_s,
        "ready": row.ready_wrong_s <= bounds.state_s and row.ready_slowest_s <= bounds.ready_answer_s,
        "health": row.health_p99_s <= HEALTH_P99_S,
        "engines": ends_node or not row.engines_restarted,
    }
    return replace(row, goals=goals)


def longest_gap(
    answers: Sequence[Probe], engines: Engines, begin_s: float, end_s: float
) -> tuple[float, float]:
    """The longest time between two answers within these times, without and with that without an engine."""
    ended = sorted(one.ended_s for one in answers if one.ok)
    first = max(0, bisect_right(ended, begin_s) - 1)
    times = [max(begin_s, at) for at in ended[first : bisect_left(ended, end_s)]]
    times = [begin_s, *times, end_s]
    gaps = [(after - before, before, after) for before, after in pairwise(times)]
    longest = max(gap - engines.seconds_without(before, after) for gap, before, after in gaps)
    return max(0.0, longest), max(gap for gap, _, _ in gaps)


def longest_lie(readies: Sequence[Ready], answers: Sequence[Probe], engines: Engines) -> float:
    """The longest stretch in which `/ready` said, every time, what was not so."""
    served = sorted(one.sent_s for one in answers if one.ok and one.took_s <= _PROMPT_S)
    longest = 0.0
    since: float | None = None
    for ready in sorted(readies, key=lambda one: one.sent_s):
        if _is_true(ready, served, engines):
            since = None
            continue
        since = ready.sent_s if since is None else since
        longest = max(longest, ready.ended_s - since)
    return longest


def _is_true(ready: Ready, served: Sequence[float], engines: Engines) -> bool:
    """Whether what it said was so at some time from when it was asked until it answered."""
    counts = list(engines.between(ready.sent_s, ready.ended_s))
    if not counts:
        return True
    if ready.said == "up":
        return max(counts) >= max(1, ready.replicas)
    if min(counts) == 0:
        return True
    # "down", or nothing at all, while an engine was whole: wrong if requests of that time were answered.
    last = bisect_right(served, ready.ended_s + INTERVAL_S)
    return last == bisect_left(served, ready.sent_s)


def engines_restarted(looks: Sequence[Look], event: Event, end_s: float) -> int:
    """Engine replicas begun from the event until `end_s`, less one for an engine that was attacked.

    Counted by what begins, because what is thrown away may still drain for long; and by process groups,
    because what a replica forks has its title at first.
    """
    before: set[int] = set()
    since: set[int] = set()
    for look in looks:
        replicas = {one.group for one in look.processes if one.role == ENGINE_REPLICA}
        if look.at_s <= event.at_s:
            before |= replicas
        elif look.at_s <= end_s:
            since |= replicas
    attacked = event.role in (ENGINE_REPLICA, ENGINE_CORE)
    return max(0, len(since - before) - attacked)


def _waited_s(probe: Probe, engines: Engines, end_s: float) -> float:
    """How long a request went without an answer while an engine could have given it."""
    until = min(probe.ended_s, end_s)
    return max(0.0, until - probe.sent_s - engines.seconds_without(probe.sent_s, until))


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank of an ordered sample."""
    if not ordered:
        return 0.0
    return ordered[ceil(share * len(ordered)) - 1]
