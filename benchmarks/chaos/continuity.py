"""The effect of losses in a row on greedy streams, by kind of loss. Pure: a trace in, rows out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.chaos.greedy_chat import differences
from benchmarks.chaos.roles import ENGINE_CORE, ENGINE_REPLICA
from benchmarks.chaos.trace import Event, Stream, Trace
from benchmarks.chaos.verdicts import percentile
from benchmarks.common import markdown

_DETECTION_S = {(ENGINE_REPLICA, "stop"): 2.0, (ENGINE_CORE, "stop"): 3.5}
"""A replica without a heartbeat counts as lost after 2 s, and an engine that takes no step after 3.5 s
(`serve_app/ingress/replica_heartbeats.py`, `serve_app/engine/engine_health.py`). A killed one counts at
once."""
_PAUSE_P50_S, _PAUSE_P99_S = 0.5, 5.0
NO_LOSS, TOTAL = "no loss", "all"


@dataclass(slots=True)
class Row:
    """Losses of one kind. Each effect on a stream is put down to the loss nearest in time."""

    kind: str
    losses: int = 0
    streams: int = 0
    """Streams open at a loss, summed over the losses. The row of all counts each stream once."""
    moves: int = 0
    """Moves of streams to another replica."""
    broken: int = 0
    """Streams whose client did not get a whole answer."""
    differing: int = 0
    """Whole answers that are not equal to the undisturbed one."""
    pauses_s: list[float] = field(default_factory=list)
    """For each move, the time from the last piece before to the first after, less the time of detection."""


def judge(trace: Trace) -> list[Row]:
    """A row for each kind of loss, one for streams that met none, and one for all."""
    events, streams = trace.events, trace.streams
    found = {event.name: Row(event.name) for event in events}
    found[NO_LOSS] = Row(NO_LOSS)
    total = Row(TOTAL, losses=len(events), streams=len(streams))
    undisturbed = references(trace)
    for event in events:
        row = found[event.name]
        row.losses += 1
        row.streams += sum(one.opened_s <= event.at_s < one.ended_s for one in streams)
    for stream in streams:
        found[NO_LOSS].streams += not _met(events, stream)
        for row in (total, found[_cause(events, stream)]):
            row.broken += not stream.whole
            row.differing += stream.whole and bool(differences(stream, undisturbed[stream.subject]))
        for last_s, first_s in stream.moves:
            event = _nearest(events, last_s)
            pause_s = first_s - last_s - _DETECTION_S.get((event.role, event.signal), 0.0)
            for row in (total, found[event.name]):
                row.moves += 1
                row.pauses_s.append(max(0.0, pause_s))
    return [*found.values(), total]


def references(trace: Trace) -> Mapping[str, Stream]:
    """The first whole answer about each subject, all from before the first loss."""
    begin_s = min((event.at_s for event in trace.events), default=float("inf"))
    found: dict[str, Stream] = {}
    for stream in trace.streams:
        if stream.whole and stream.ended_s < begin_s:
            found.setdefault(stream.subject, stream)
    return found


def _met(events: Sequence[Event], stream: Stream) -> list[Event]:
    return [event for event in events if stream.opened_s <= event.at_s < stream.ended_s]


def _nearest(events: Sequence[Event], at_s: float) -> Event:
    return min(events, key=lambda event: abs(event.at_s - at_s))


def _cause(events: Sequence[Event], stream: Stream) -> str:
    """The loss that a broken or differing stream is put down to: that of its first move, or the last one."""
    met = _met(events, stream)
    if stream.whole and met and stream.moves:
        return _nearest(met, stream.moves[0][0]).name
    before = met if stream.whole else [event for event in events if event.at_s < stream.ended_s]
    return before[-1].name if before else NO_LOSS


def goals(rows: Sequence[Row]) -> dict[str, bool]:
    """Each goal, and whether it holds."""
    total = rows[-1]
    p50_s, p99_s = (percentile(total.pauses_s, share) for share in (0.5, 0.99))
    return {
        f"0 broken of {total.streams} streams": not total.broken,
        "each whole stream equals the undisturbed one": not total.differing,
        f"pause beyond detection: P50 within {_PAUSE_P50_S:g} s": p50_s <= _PAUSE_P50_S,
        f"pause beyond detection: P99 within {_PAUSE_P99_S:g} s": p99_s <= _PAUSE_P99_S,
    }


def report(trace: Trace) -> tuple[str, bool]:
    """Tables in Markdown, with a line for each stream that missed a goal; and whether every goal holds."""
    rows = judge(trace)
    header = ("lost", "losses", "streams", "moves", "broken", "differing", "pause P50/P95/P99, s")
    verdicts = goals(rows)
    lines = [[goal, "PASS" if one else "MISS"] for goal, one in verdicts.items()]
    parts = [markdown.table(header, [_cells(row) for row in rows]), *_notes(trace)]
    parts.append(markdown.table(("goal", "verdict"), lines, numbers=False))
    if len({one.api for one in trace.streams}) > 1:
        parts.insert(1, _by_api(trace))
    return "\n\n".join(parts), all(verdicts.values())


def _by_api(trace: Trace) -> str:
    """A table of the streams that met a loss, by API."""
    undisturbed = references(trace)
    lines = []
    for api in sorted({one.api for one in trace.streams}):
        streams = [one for one in trace.streams if one.api == api and _met(trace.events, one)]
        outcomes = [one.outcome for one in streams]
        alike = sum(one.whole and not differences(one, undisturbed[one.subject]) for one in streams)
        errors, moves = outcomes.count("error"), sum(len(one.moves) for one in streams)
        whole = sum(one.whole for one in streams)
        counts = (len(streams), moves, whole, alike, errors, len(streams) - whole - errors)
        lines.append([api, *map(str, counts)])
    header = ("API", "met a loss", "moves", "whole", "as undisturbed", "ended by the API's error", "else")
    return markdown.table(header, lines)


def _cells(row: Row) -> list[str]:
    pauses = [f"{percentile(row.pauses_s, share):.2f}" for share in (0.5, 0.95, 0.99)]
    counts = (row.losses, row.streams, row.moves, row.broken, row.differing)
    return [row.kind, *map(str, counts), " / ".join(pauses) if row.pauses_s else ""]


def _notes(trace: Trace) -> list[str]:
    begin_s = min((event.at_s for event in trace.events), default=0.0)
    undisturbed, found = references(trace), []
    for one in trace.streams:
        name = f"- {one.subject}, {one.opened_s - begin_s:.1f} to {one.ended_s - begin_s:.1f} s"
        name += f", {len(one.moves)} moves"
        if not one.whole:
            found.append(f"{name}: {one.outcome} after {len(one.text)} characters: {one.error}")
        elif names := differences(one, undisturbed[one.subject]):
            found.append(f"{name}: differs in {', '.join(names)}")
    return found
