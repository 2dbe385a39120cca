"""The autoscaler's decisions in words, for a terminal of 100 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from datetime import datetime, tzinfo

from serve_app.cli.decision_documents import (
    DecisionsDocument,
    ModelStatus,
    RecordDocument,
    StatusDocument,
)
from serve_app.cli.style import Style
from serve_app.wire.signals import STALE_AFTER_S

WIDTH = 100
NO_POLICY = (
    "No policy has reported yet. If this does not change, the configuration lacks the lines\n"
    "  autoscaling_policy:\n"
    "    policy_function: serve_app.controller.serve_policy:ServePolicy\n"
    "beside import_path; `tideserve check FILE` says whether it does."
)
REJECTED = "The knobs given last are rejected, and the earlier ones stay in force: "

_SOURCES_SHOWN = 4
_LATE_S = 15.0
"""The policy reports at least every ten seconds."""


def explain(
    document: DecisionsDocument,
    now: float,
    model: str | None = None,
    zone: tzinfo | None = None,
    style: Style | None = None,
) -> str:
    """Return a block for every model: its replicas, the newest decision and its reasons, and the history.

    Args:
        document: The endpoint's answer.
        now: Unix time in seconds, for the ages shown.
        model: The only model to show; None for all.
        zone: The time zone of the times shown; None for this machine's.
        style: Emphasis; none by default.
    """
    style = style or Style()
    status = document.autoscaler
    blocks = []
    if document.knobs_rejected:
        blocks.append("\n".join(style.warn(line) for line in _hanging(REJECTED, document.knobs_rejected, 2)))
    if status is None:
        blocks.append(style.warn(NO_POLICY))
    if status is not None and (trouble := _trouble(status, now)):
        blocks.append("\n".join(style.warn(line) for line in trouble))
    records: dict[str, list[RecordDocument]] = {
        deployment: []
        for deployment, state in (status.models if status is not None else {}).items()
        if model in (None, state.model)
    }
    for record in document.decisions:
        records.setdefault(record.deployment, []).append(record)
    for deployment, its_records in records.items():
        state = status.models.get(deployment) if status is not None else None
        blocks.append(_block(deployment, state, its_records, now, zone, style))
    return "\n\n".join(blocks) + "\n"


def history_line(
    record: RecordDocument,
    zone: tzinfo | None = None,
    style: Style | None = None,
    dated: bool = False,
    with_model: bool = False,
) -> str:
    """Return a record as `time  old -> new  binding  reason`, the reason wrapped below its own start.

    In mode `advise` the target does not change, and the replicas wanted are in brackets.
    """
    style = style or Style()
    arrow = f"{record.old_target} -> {record.new_target}"
    if record.mode == "advise":
        arrow = f"{record.old_target} ({record.wanted})"
    model = f"{record.model or 'application'}  " if with_model else ""
    head = f"  {_clock(record.at, zone, dated)}  {model}{arrow:<8}  {record.binding:<12}  "
    lines = _hanging(head, _without(record.reason, record.binding))
    if record.kind == "error":
        lines = [style.warn(line) for line in lines]
    elif record.kind == "heartbeat":
        lines = [style.dim(line) for line in lines]
    return "\n".join(lines)


def _clock(at: float, zone: tzinfo | None, dated: bool) -> str:
    return datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S")


def _on_another_day(at: float, now: float, zone: tzinfo | None) -> bool:
    return datetime.fromtimestamp(at, zone).date() != datetime.fromtimestamp(now, zone).date()


def _trouble(status: StatusDocument, now: float) -> list[str]:
    lines = []
    late = now - status.at
    if late > _LATE_S:
        lines.append(f"The policy last reported {_span(late)} ago: what follows may be out of date.")
    if status.policy_errors:
        times = "once" if status.policy_errors == 1 else f"{status.policy_errors} times"
        lines.append(
            f"The policy raised an error {times} and kept its targets. The history shows the errors."
        )
    return lines


def _block(
    deployment: str,
    state: ModelStatus | None,
    records: list[RecordDocument],
    now: float,
    zone: tzinfo | None,
    style: Style,
) -> str:
    newest = next((record for record in reversed(records) if record.terms), None)
    name = state.model if state is not None else records[-1].model
    lines = [style.bold(name or deployment or "The whole application")]
    if state is not None:
        lines += _replicas(state, style)
    if newest is not None:
        lines += ["", *_decision(newest, now, zone, style)]
    shown = [record for record in records if record.kind != "heartbeat"]
    dated = any(_on_another_day(record.at, now, zone) for record in shown)
    lines += ["", style.bold("  History")]
    lines += [history_line(record, zone, style, dated) for record in shown] or [
        style.dim("  no change among the records asked for")
    ]
    return "\n".join(lines)


def _replicas(state: ModelStatus, style: Style) -> list[str]:
    moving = f", {state.starting} starting" if state.starting else ""
    moving += f", {state.draining} draining" if state.draining else ""
    cold = "not measured yet" if state.cold_start_s is None else f"{_span(state.cold_start_s)}, measured"
    counts = f"{state.ready} ready, target {state.target}, wanted {state.wanted}{moving}"
    lines = [f"  {counts}; mode {state.mode}; cold start {cold}"]
    if state.pending:
        why = state.reason or "the cluster gives no reason"
        head = f"  {state.pending} pending for {_span(state.pending_s)}: "
        lines += [style.warn(line) for line in _hanging(head, why, indent=4)]
    return lines


def _decision(record: RecordDocument, now: float, zone: tzinfo | None, style: Style) -> list[str]:
    at = _clock(record.at, zone, _on_another_day(record.at, now, zone))
    move = f"{record.old_target} -> {record.new_target}"
    lines = [style.bold(f"  Newest decision, {at}: {move}, because of {record.binding}")]
    lines += _hanging("  ", _without(record.reason, record.binding))
    if record.counterfactual:
        lines += _hanging("  ", record.counterfactual)
    lines += ["", *_reasons(record, style)]
    lines.append("")
    for note in record.notes:
        lines += [style.warn(line) for line in _hanging("  note: ", note)]
    lines += [style.dim(line) for line in _hanging("  reports: ", _ages(record.ages_s))]
    return lines


def _reasons(record: RecordDocument, style: Style) -> list[str]:
    """Return a row for each term and each clamp; `>` marks the one that was binding."""
    terms = sorted(record.terms, key=lambda term: -term.replicas)
    rows = [(term.name, str(term.replicas), term.why) for term in terms]
    clamps = [(clamp.name, "", clamp.effect) for clamp in record.clamps]
    width = max(len(name) for name, _, _ in [("clamp", "", ""), *rows, *clamps])
    lines = []
    for title, table in ((("term", "replicas", "why"), rows), (("clamp", "", "effect"), clamps)):
        if table:
            lines.append(style.dim(f"    {title[0]:<{width}}  {title[1]:>8}  {title[2]}"))
        for name, replicas, why in table:
            binding = name == record.binding
            row = _hanging(f"  {'>' if binding else ' '} {name:<{width}}  {replicas:>8}  ", why)
            lines += [style.bold(line) if binding else line for line in row]
    return lines


def _ages(ages_s: Mapping[str, float]) -> str:
    """Return how old the reports of a decision are, and name the replicas whose reports are stale."""
    if not ages_s:
        return "none"
    oldest_last = sorted(ages_s.items(), key=lambda item: item[1])
    if len(oldest_last) <= _SOURCES_SHOWN:
        text = ", ".join(f"{source} {_span(age)}" for source, age in oldest_last)
        return f"{text} old"
    text = f"{len(ages_s)} reports, {_span(oldest_last[0][1])} to {_span(oldest_last[-1][1])} old"
    stale = [source for source, age in oldest_last if age > STALE_AFTER_S]
    if not stale:
        return text
    shown = ", ".join(stale[:_SOURCES_SHOWN]) + (", …" if len(stale) > _SOURCES_SHOWN else "")
    return f"{text}; too old to use: {shown}"


def _without(reason: str, binding: str) -> str:
    """Return the reason without the name of what was binding, which is shown before it."""
    return reason.removeprefix(f"{binding}: ")


def _hanging(head: str, text: str, indent: int | None = None) -> list[str]:
    """Return `text` after `head`, wrapped at 100 columns below its own start or at `indent`."""
    return textwrap.wrap(
        text or "-",
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * (len(head) if indent is None else indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _span(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
