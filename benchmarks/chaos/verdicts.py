"""The cost of each event for clients, and whether the goals hold. Pure: a trace in, rows and tables out."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import TypeVar, get_args

from benchmarks.chaos.roles import BY_NAME, ENGINE_CORE, ENGINE_REPLICA, HEALTH_P99_S
from benchmarks.chaos.trace import INTERVAL_S, Event, Outcome, Probe, Ready, Snapshot, Trace
from benchmarks.common import markdown

_PROMPT_S = 1.0
"""A request answered within this time shows that the server served when it was asked."""
_SETTLED_S = 0.5
"""An engine core takes 0.7 s and more to load, so `/ready` does not count one that is younger."""
P = TypeVar("P", bound=Probe)

GOALS = {
    "cut": "streams are cut only where the client's own connection was to the dead process",
    "answers": "no new request waits more than 2 s (5 s: a hung engine or ingress) while an engine lives",
    "ready": "/ready says no state that is older than 2 s (5 s: hung), and answers within 1 s (5 s: hung)",
    "health": "/health answers within 50 ms at P99",
    "engines": "no engine is started anew but the one attacked",
}


class Engines:
    """How many engines could serve, over time.

    A process that is still loading serves no request, and nothing outside shows when it has loaded. So an
    engine counts once `/ready` counts as many as there are, or once a request is answered and no other
    engine could have answered it. From then on it counts while its replica and core live and run.
    """

    def __init__(
        self, snapshots: Sequence[Snapshot], readies: Sequence[Ready], answers: Sequence[Probe]
    ) -> None:
        self._at: list[float] = []
        self._able: list[int] = []
        able: set[tuple[int, int]] = set()
        began: dict[tuple[int, int], float] = {}
        readies, answers = _by_end(readies), _by_end([one for one in answers if one.ok])
        for number, snapshot in enumerate(sorted(snapshots, key=lambda one: one.at_s)):
            at_s, whole = snapshot.at_s, set(snapshot.engines())
            for pair in whole:
                began.setdefault(pair, at_s if number else float("-inf"))
            settled = {pair for pair in whole if at_s - began[pair] > _SETTLED_S}
            ready, answer = _latest(readies, at_s), _latest(answers, at_s)
            if ready is not None and ready.up and ready.replicas >= len(whole):
                able |= settled
            only = len(settled) == 1 and not whole & able
            if only and answer is not None and answer.sent_s > began[min(settled)] + _SETTLED_S:
                able |= settled
            self._at.append(at_s)
            self._able.append(len(whole & able))

    def between(self, begin_s: float, end_s: float) -> Iterator[int]:
        """Every count that was true at some time between these."""
        first = max(0, bisect_left(self._at, begin_s) - 1)
        for index in range(first, len(self._at)):
            if index > first and self._at[index] > end_s:
                break
            yield self._able[index]

    def seconds_without(self, begin_s: float, end_s: float) -> float:
        """How long no engine could serve, between these."""
        untils = [*self._at[1:], max(end_s, self._at[-1])] if self._at else []
        spans = zip(self._at, untils, self._able, strict=True)
        return sum(max(0.0, min(until, end_s) - max(at, begin_s)) for at, until, able in spans if not able)


def _by_end(probes: Sequence[P]) -> list[P]:
    return sorted(probes, key=_ended)


def _ended(probe: Probe) -> float:
    return probe.ended_s


def _latest(probes: Sequence[P], at_s: float) -> P | None:
    """The last probe that had ended by then."""
    index = bisect_right(probes, at_s, key=_ended)
    return probes[index - 1] if index else None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Times in seconds."""

    event: Event
    streams: Mapping[str, int]
    """Streams that ended while the event was watched, by outcome."""
    longest_pause_s: float
    """The longest pause of a stream that was not cut."""
    unanswered_s: float
    """The longest time without an answer to a new request, less the time without an engine."""
    unanswered_all_s: float
    """The same, with the time without an engine."""
    slowest_s: float
    """The longest wait of one new request, less the time without an engine."""
    failed: int
    """New requests that were refused or answered with an error."""
    ready_wrong_s: float
    """The longest stretch in which every answer of `/ready` was wrong."""
    ready_slowest_s: float
    health_s: tuple[float, float, float]
    """P50, P99 and maximum of the answers of `/health`."""
    engines_restarted: int
    """Engine replicas started anew, beside the one in place of the attacked."""

    @property
    def missed(self) -> tuple[str, ...]:
        """The goals that do not hold."""
        role, bounds = BY_NAME[self.event.role], BY_NAME[self.event.role].bounds(self.event.signal)
        waited_s = max(self.unanswered_s, self.slowest_s)
        kept = {
            "cut": role.serves_connection or not self.streams.get("cut", 0) + self.streams.get("hung", 0),
            "answers": waited_s <= bounds.unanswered_s,
            "ready": self.ready_wrong_s <= bounds.ready_age_s
            and self.ready_slowest_s <= bounds.ready_answer_s,
            "health": self.health_s[1] <= HEALTH_P99_S,
            "engines": role.ends_node or not self.engines_restarted,
        }
        return tuple(goal for goal in GOALS if not kept[goal])


def rows(trace: Trace) -> list[Row]:
    """A row for each event: the streams that ended, and the probes that were sent, before the next one."""
    engines = Engines(trace.snapshots, trace.readies, trace.answers)
    return [_row(trace, engines, event, event.end_s) for event in trace.events if event.end_s is not None]


def _row(trace: Trace, engines: Engines, event: Event, end_s: float) -> Row:
    streams = [one for one in trace.streams if event.at_s <= one.ended_s < end_s]
    answers = [one for one in trace.answers if event.at_s <= one.ended_s and one.sent_s < end_s]
    readies = [one for one in trace.readies if event.at_s <= one.sent_s < end_s]
    healths = [one.took_s for one in trace.healths if event.at_s <= one.sent_s < end_s and one.ok]
    gap_s, gap_all_s = longest_gap(trace.answers, engines, event.at_s, end_s)
    return Row(
        event,
        streams=Counter(one.outcome for one in streams),
        longest_pause_s=max((one.longest_pause_s for one in streams if one.outcome != "cut"), default=0.0),
        unanswered_s=gap_s,
        unanswered_all_s=gap_all_s,
        slowest_s=max((_waited_s(one, engines, end_s) for one in answers), default=0.0),
        failed=sum(not one.ok for one in answers),
        ready_wrong_s=longest_wrong_ready(readies, trace.answers, engines),
        ready_slowest_s=max((one.took_s for one in readies), default=0.0),
        health_s=(percentile(healths, 0.5), percentile(healths, 0.99), percentile(healths, 1.0)),
        engines_restarted=engines_restarted(trace.snapshots, event, end_s),
    )


def longest_gap(
    answers: Sequence[Probe], engines: Engines, begin_s: float, end_s: float
) -> tuple[float, float]:
    """The longest time between two answers, without and with the time in which no engine could serve."""
    ended = sorted(one.ended_s for one in answers if one.ok)
    inside = [at for at in ended if begin_s <= at < end_s]
    gaps = list(pairwise([begin_s, *inside, end_s]))
    longest = max(after - before - engines.seconds_without(before, after) for before, after in gaps)
    return max(0.0, longest), max(after - before for before, after in gaps)


def _waited_s(probe: Probe, engines: Engines, end_s: float) -> float:
    """How long a request went without an answer while an engine could have given it."""
    until = min(probe.ended_s, end_s)
    return max(0.0, until - probe.sent_s - engines.seconds_without(probe.sent_s, until))


def longest_wrong_ready(readies: Sequence[Ready], answers: Sequence[Probe], engines: Engines) -> float:
    """The longest stretch in which every answer of `/ready` was wrong."""
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
    """Whether the answer was true at some time between its request and its end."""
    counts = list(engines.between(ready.sent_s, ready.ended_s))
    if not counts:
        return True
    if ready.up:
        return max(counts) >= max(1, ready.replicas)
    if min(counts) == 0:
        return True
    # Down, or no answer, while an engine was whole: wrong if requests of that time were answered.
    last = bisect_right(served, ready.ended_s + INTERVAL_S)
    return last == bisect_left(served, ready.sent_s)


def engines_restarted(snapshots: Sequence[Snapshot], event: Event, end_s: float) -> int:
    """Engine replicas begun from the event until `end_s`, less one if an engine was attacked.

    Beginnings are counted, because a replica that is thrown away may drain for long; and process groups,
    because a fork of a replica has the replica's title at first.
    """
    before: set[int] = set()
    since: set[int] = set()
    for snapshot in snapshots:
        replicas = {one.group for one in snapshot.processes if one.role == ENGINE_REPLICA}
        if snapshot.at_s <= event.at_s:
            before |= replicas
        elif snapshot.at_s <= end_s:
            since |= replicas
    return max(0, len(since - before) - (event.role in (ENGINE_REPLICA, ENGINE_CORE)))


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank; 0 of no values."""
    return sorted(values)[ceil(share * len(values)) - 1] if values else 0.0


_HEADER = (
    "", *get_args(Outcome), "longest pause, s", "no answer, s", "slowest, s", "failed", "/ready wrong, s",
    "/ready slowest, s", "/health P50/P99/max, ms", "engines restarted", "back after, s", "goals",
)  # fmt: skip


def report(trace: Trace) -> tuple[str, bool]:
    """Tables in Markdown, and whether every goal holds."""
    found = rows(trace)
    parts = [markdown.table(_HEADER, [_cells(row) for row in found], numbers=False)]
    parts += [f"- {row.event.name}: {row.event.note}" for row in found if row.event.note]
    lines = []
    for goal, words in GOALS.items():
        missed = [row.event.name for row in found if goal in row.missed]
        text = f"MISS in {len(missed)} of {len(found)}: {', '.join(missed)}" if missed else "PASS"
        lines.append([words, text])
    parts.append(markdown.table(("goal", "verdict"), lines, numbers=False))
    return "\n\n".join(parts), not any(row.missed for row in found)


def _cells(row: Row) -> list[str]:
    extra_s = row.unanswered_all_s - row.unanswered_s
    with_all = "" if extra_s < 0.05 else f" ({row.unanswered_all_s:.1f} in all)"
    # At random the next attack does not wait for the recovery.
    missing = "no" if row.event.note else "-"
    back = missing if row.event.back_s is None else f"{row.event.back_s:.1f}"
    return [
        row.event.name,
        *(str(row.streams.get(outcome, 0)) for outcome in get_args(Outcome)),
        f"{row.longest_pause_s:.1f}",
        f"{row.unanswered_s:.1f}{with_all}",
        f"{row.slowest_s:.1f}",
        str(row.failed),
        f"{row.ready_wrong_s:.1f}",
        f"{row.ready_slowest_s:.1f}",
        "/".join(f"{seconds * 1e3:.0f}" for seconds in row.health_s),
        str(row.engines_restarted),
        back,
        f"MISS: {', '.join(row.missed)}" if row.missed else "PASS",
    ]
