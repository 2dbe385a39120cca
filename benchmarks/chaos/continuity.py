"""What losses in a row did to greedy streams, by kind of loss. Pure: what was done and heard in, rows out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from benchmarks.chaos.greedy import Heard, differences
from benchmarks.chaos.observed import Event
from benchmarks.chaos.roles import ENGINE_CORE, ENGINE_REPLICA
from benchmarks.common import markdown

DETECTION_S = {(ENGINE_REPLICA, "stop"): 2.0, (ENGINE_CORE, "stop"): 3.5}
"""A replica that says nothing counts as lost after this, and an engine that takes no step after that
(`serve_app/ingress/replica_heartbeats.py`, `serve_app/engine/stall.py`); what was killed counts at once."""
PAUSE_P50_S, PAUSE_P99_S = 0.5, 5.0
"""Of what a client waits beyond that."""
NO_LOSS = "no loss"
TOTAL = "all"


@dataclass(slots=True)
class Row:
    """Losses of one kind. What befell a stream is put down to the loss nearest in time."""

    kind: str
    losses: int = 0
    streams: int = 0
    """Streams that were open at a loss, summed over the losses; in the row of all, different streams."""
    moved: int = 0
    """Moves of streams to another replica."""
    broken: int = 0
    """Streams whose client did not get a whole answer."""
    differing: int = 0
    """Whole answers that are not what an undisturbed run gives."""
    pauses_s: list[float] = field(default_factory=list)
    """Of each move, from the last piece before it to the first behind it, less the time of detection."""


def judge(events: Sequence[Event], heard: Sequence[Heard]) -> list[Row]:
    """A row for each kind of loss, one for streams that met none, and one for all."""
    found = {kind_of(event): Row(kind_of(event)) for event in events}
    total = Row(TOTAL, losses=len(events), streams=len(heard))
    found[NO_LOSS] = Row(NO_LOSS)
    undisturbed = references(events, heard)
    for event in events:
        row = found[kind_of(event)]
        row.losses += 1
        row.streams += sum(one.opened_s <= event.at_s < one.ended_s for one in heard)
    for one in heard:
        met = [event for event in events if one.opened_s <= event.at_s < one.ended_s]
        found[NO_LOSS].streams += not met
        before = [event for event in events if event.at_s < one.ended_s]
        for row in (total, found[_cause(met, before, one)]):
            row.broken += not one.whole
            row.differing += one.whole and bool(differences(one, undisturbed[one.subject]))
        for last_s, first_s in one.moves:
            event = min(events, key=lambda event: abs(event.at_s - last_s))
            pause_s = first_s - last_s - DETECTION_S.get((event.role, event.signal), 0.0)
            for row in (total, found[kind_of(event)]):
                row.moved += 1
                row.pauses_s.append(max(0.0, pause_s))
    return [*found.values(), total]


def references(events: Sequence[Event], heard: Sequence[Heard]) -> Mapping[str, Heard]:
    """The first whole answer about each subject, all of them from before the first loss."""
    begin_s = min((event.at_s for event in events), default=float("inf"))
    found: dict[str, Heard] = {}
    for one in heard:
        if one.whole and one.ended_s < begin_s:
            found.setdefault(one.subject, one)
    return found


def kind_of(event: Event) -> str:
    """`engine-core killed`, for example."""
    return f"{event.role} {'killed' if event.signal == 'kill' else 'stopped'}"


def _cause(met: Sequence[Event], before: Sequence[Event], one: Heard) -> str:
    """What a broken or differing stream is put down to: the loss of its first move, or the last one."""
    if not one.whole:
        return kind_of(before[-1]) if before else NO_LOSS
    if not met:
        return NO_LOSS
    if one.moves:
        return kind_of(min(met, key=lambda event: abs(event.at_s - one.moves[0][0])))
    return kind_of(met[-1])


def table(rows: Sequence[Row]) -> str:
    """A line for each kind of loss."""
    header = ("lost", "losses", "streams", "moved", "broken", "differing", "pause P50/P95/P99, s")
    return markdown.table(header, [_cells(row) for row in rows])


def goals(rows: Sequence[Row]) -> dict[str, bool]:
    """Each goal, and whether it holds."""
    total = rows[-1]
    return {
        f"0 broken of {total.streams} streams": not total.broken,
        "each whole stream is what an undisturbed run gives": not total.differing,
        f"pause beyond detection: P50 within {PAUSE_P50_S:g} s": percentile(total.pauses_s, 0.5)
        <= PAUSE_P50_S,
        f"pause beyond detection: P99 within {PAUSE_P99_S:g} s": percentile(total.pauses_s, 0.99)
        <= PAUSE_P99_S,
    }


def goals_table(rows: Sequence[Row]) -> str:
    """The goals, with a verdict for each."""
    lines = [[goal, "PASS" if held else "MISS"] for goal, held in goals(rows).items()]
    return markdown.table(("goal", "held"), lines, numbers=False)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank; 0 of nothing."""
    return sorted(values)[ceil(share * len(values)) - 1] if values else 0.0


def _cells(row: Row) -> list[str]:
    pauses = [f"{percentile(row.pauses_s, share):.2f}" for share in (0.5, 0.95, 0.99)]
    counts = (row.losses, row.streams, row.moved, row.broken, row.differing)
    return [row.kind, *map(str, counts), " / ".join(pauses) if row.pauses_s else ""]
