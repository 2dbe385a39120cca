"""The answer of `GET /autoscaling/decisions` in words, for a terminal of 100 columns. Pure."""

import textwrap
from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Literal

from pydantic import Field

from serve_app.cli.formats import columns, count, seconds
from serve_app.cli.http_client import Document
from serve_app.cli.terminal_output import Style
from serve_app.wire.signals import STALE_AFTER_S

WIDTH = 100
NO_POLICY = (
    "No policy has reported yet. The configuration may lack these lines beside import_path:\n"
    "  autoscaling_policy:\n"
    "    policy_function: serve_app.controller.serve_policy:ServePolicy\n"
    "`tideserve check FILE` says whether they are missing."
)
REJECTED = "The newest knobs are rejected, so the knobs before them stay in force. Error: "

_SOURCES_SHOWN = 4
_ADAPTERS_SHOWN = 16
_LATE_S = 15.0
"""The policy reports at least every ten seconds."""
_NO_STYLE = Style()


class _Term(Document):
    name: str
    replicas: int
    why: str = ""


class _Clamp(Document):
    name: str
    effect: str = ""


class RecordDocument(Document):
    """One decision about one deployment. `at` in Unix time, seconds."""

    seq: int
    at: float
    deployment: str = ""
    model: str = ""
    kind: Literal["change", "heartbeat", "error", "loss", "version"]
    mode: str = ""
    old_target: int
    new_target: int
    wanted: int
    ready: int
    binding: str = ""
    reason: str = ""
    counterfactual: str = ""
    terms: tuple[_Term, ...] = ()
    clamps: tuple[_Clamp, ...] = ()
    signals: dict[str, float | bool] = Field(default_factory=dict)
    ages_s: dict[str, float] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class _Variant(Document):
    target: int = 0
    ready: int = 0
    usd_per_hour: float = 0.0
    capacity_rps: float = 0.0
    at_once: int = 0
    dry_s: float = 0.0
    meets_targets: bool = True


class _ModelStatus(Document):
    model: str
    mode: str = "act"
    wanted: int = 0
    target: int = 0
    ready: int = 0
    starting: int = 0
    pending: int = 0
    pending_s: float = 0.0
    draining: int = 0
    reason: str = ""
    failed: bool = False
    """Whether `/ready` calls the model failed."""
    cold_start_s: float | None = None
    warm_node: bool = False
    warm_node_start_s: float | None = None
    cold_node_start_s: float | None = None
    variants: dict[str, _Variant] = Field(default_factory=dict)
    usd_per_hour: float = 0.0
    dearest_usd_per_hour: float = 0.0


class _Status(Document):
    """The policy's last report, made at `at` (Unix seconds, policy's clock). `models` by deployment."""

    at: float
    age_s: float
    """By the server's clock."""
    policy_errors: int = 0
    zygote: bool = True
    models: dict[str, _ModelStatus] = Field(default_factory=dict)


class DecisionsDocument(Document):
    """The whole response. Records are oldest first. `autoscaler` is null until a policy reports."""

    knobs_rejected: str = ""
    """The error of the newest knobs, if they are invalid and the previous knobs stay in force; else empty."""
    autoscaler: _Status | None
    decisions: tuple[RecordDocument, ...]
    adapters: dict[str, dict[str, int]] = Field(default_factory=dict)
    """How many replicas have loaded each adapter, by model and adapter."""


def explain(
    document: DecisionsDocument,
    now: float,
    model: str | None = None,
    zone: tzinfo | None = None,
    style: Style = _NO_STYLE,
) -> str:
    """Return a block for every model: its replicas, the newest decision and its reasons, and the history.

    `now` is Unix time in seconds; `model` is the only one to show; `zone` None is this machine's time zone.
    """
    status = document.autoscaler
    models, zygote = ({}, True) if status is None else (status.models, status.zygote)
    rejected = _wrap_after(REJECTED, document.knobs_rejected, 2) if document.knobs_rejected else []
    trouble = [NO_POLICY] if status is None else []
    if status is not None and (late := status.age_s) > _LATE_S:
        trouble.append(
            f"The policy last reported {seconds(late)} ago, so the lines below may be out of date."
        )
    if status is not None and status.policy_errors:
        times = "once" if status.policy_errors == 1 else f"{status.policy_errors} times"
        history = "The history shows the errors."
        trouble.append(f"The policy raised an error {times} and kept the targets. {history}")
    blocks = ["\n".join(map(style.warn, lines)) for lines in (rejected, trouble) if lines]
    records: dict[str, list[RecordDocument]] = {
        deployment: [] for deployment, state in models.items() if model in (None, state.model)
    }
    for record in document.decisions:
        records.setdefault(record.deployment, []).append(record)
    for deployment, its_records in records.items():
        block = _block(deployment, models.get(deployment), zygote, its_records, now, zone, style)
        name = models[deployment].model if deployment in models else ""
        blocks.append("\n".join([block, *_adapters(document.adapters.get(name, {}))]))
    return "\n\n".join(blocks) + "\n"


def history_line(
    record: RecordDocument,
    zone: tzinfo | None = None,
    style: Style = _NO_STYLE,
    *,
    dated: bool = False,
    with_model: bool = False,
) -> str:
    """Return a record as `time  old -> new  binding  reason`, the reason wrapped below its own start.

    In mode `advise` the target does not change, and the replicas wanted are in brackets.
    """
    arrow = f"{record.old_target} -> {record.new_target}"
    if record.mode == "advise":
        arrow = f"{record.old_target} ({record.wanted})"
    model = f"{record.model or 'application'}  " if with_model else ""
    head = f"  {_clock(record.at, zone, dated)}  {model}{arrow:<8}  {record.binding:<12}  "
    lines = _wrap_after(head, _strip_binding(record.reason, record.binding))
    if record.kind in ("error", "loss", "version"):
        lines = [style.warn(line) for line in lines]
    elif record.kind == "heartbeat":
        lines = [style.dim(line) for line in lines]
    return "\n".join(lines)


def _clock(at: float, zone: tzinfo | None, dated: bool) -> str:
    return datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S")


def _on_another_day(at: float, now: float, zone: tzinfo | None) -> bool:
    return datetime.fromtimestamp(at, zone).date() != datetime.fromtimestamp(now, zone).date()


def _block(
    deployment: str,
    state: _ModelStatus | None,
    zygote: bool,
    records: list[RecordDocument],
    now: float,
    zone: tzinfo | None,
    style: Style,
) -> str:
    name = state.model if state is not None else records[-1].model
    lines = [style.bold(name or deployment or "The whole application")]
    if state is not None:
        lines += _replicas(state, zygote, style) + _variants(state, style)
    newest = next((record for record in reversed(records) if record.terms), None)
    if newest is not None:
        lines += ["", *_decision(newest, now, zone, style)]
    shown = [record for record in records if record.kind != "heartbeat"]
    dated = any(_on_another_day(record.at, now, zone) for record in shown)
    lines += ["", style.bold("  History")]
    lines += [history_line(record, zone, style, dated=dated) for record in shown] or [
        style.dim("  The requested records have no change.")
    ]
    return "\n".join(lines)


def _replicas(state: _ModelStatus, zygote: bool, style: Style) -> list[str]:
    moving = f", {state.starting} starting" if state.starting else ""
    moving += f", {state.draining} draining" if state.draining else ""
    cold = "not measured yet" if state.cold_start_s is None else f"{seconds(state.cold_start_s)}, measured"
    without = "in mode act" if state.mode == "advise" else "without clamps"
    other = f" ({state.wanted} {without})" if state.wanted != state.target else ""
    counts = f"{state.ready} ready{moving}, target {state.target}{other}"
    lines = [f"  Replicas: {counts}. Mode: {state.mode}. Cold start: {cold}."]
    if not state.pending:
        lines += _wrap_after("  ", _next_start(state, zygote), indent=4)
    if state.pending:
        have = "replica has" if state.pending == 1 else "replicas have"
        what = "failed to start" if state.failed else f"been pending for {seconds(state.pending_s)}"
        waits = f"{state.pending} {have} {what}."
        why = f"{waits} Reason: {state.reason or 'the cluster gives none; see /ready'}"
        lines += [style.warn(line) for line in _wrap_after("  ", why, indent=4)]
    elif state.reason:
        lines += [style.warn(line) for line in _wrap_after("  Trouble: ", state.reason, indent=4)]
    return lines


def _variants(state: _ModelStatus, style: Style) -> list[str]:
    """Return the replicas of each variant, and what the mix and its dearest variant alone cost an hour."""
    if not state.variants:
        return []
    rows = [("variant", "ready", "target", "spare", "requests/s", "USD/h", "")]
    for name, each in state.variants.items():
        trouble = "" if each.meets_targets else "too slow for the targets"
        trouble = f"no node; next try in {seconds(each.dry_s)}" if each.dry_s else trouble
        counts = (f"{each.ready}", f"{each.target}", f"{each.at_once}")
        rows.append((name, *counts, f"{each.capacity_rps:.1f}", f"{each.usd_per_hour:.2f}", trouble))
    first, *others = (f"    {line}" for line in columns(rows, left=(0, len(rows[0]) - 1)))
    dearest = f"The dearest variant alone would cost {state.dearest_usd_per_hour:.2f} USD/h."
    return [f"  Price: {state.usd_per_hour:.2f} USD/h. {dearest}", style.dim(first), *others]


def _adapters(holders: Mapping[str, int]) -> list[str]:
    """Return which adapters are loaded, and on how many replicas."""
    if not holders:
        return []
    shown = [f"{name} on {count(number, 'replica')}" for name, number in [*holders.items()][:_ADAPTERS_SHOWN]]
    more = len(holders) - len(shown)
    text = ", ".join(shown) + (f", and {more} more" if more else "")
    return ["", *_wrap_after("  Adapters loaded: ", f"{text}.", indent=4)]


def _next_start(state: _ModelStatus, zygote: bool) -> str:
    """Return whether a warm node has room for the next replica, and how long starts take."""
    if not zygote:
        return "The zygote is off, so every replica imports vLLM when it starts."
    warm = "node with vLLM already imported (a warm node) has room for the next replica."
    text = f"A {warm}" if state.warm_node else f"No {warm}"
    if (warm_s := state.warm_node_start_s) is not None and (cold_s := state.cold_node_start_s) is not None:
        text += f" A start takes {seconds(warm_s)} on a warm node and {seconds(cold_s)} on a cold node."
    return text


def _decision(record: RecordDocument, now: float, zone: tzinfo | None, style: Style) -> list[str]:
    at = _clock(record.at, zone, _on_another_day(record.at, now, zone))
    new = count(record.new_target, "replica")
    move = (
        f"goes from {record.old_target} to {new}"
        if record.old_target != record.new_target
        else f"stays at {new}"
    )
    lines = [style.bold(f"  Newest decision, {at}: the target {move}, because of {record.binding}.")]
    lines += _wrap_after("  ", _strip_binding(record.reason, record.binding))
    if record.counterfactual:
        lines += _wrap_after("  ", record.counterfactual)
    lines += ["", *_reasons(record, style), ""]
    for note in record.notes:
        lines += [style.warn(line) for line in _wrap_after("  note: ", note)]
    if (share := record.signals.get("cached_share")) is not None:
        tokens = record.signals.get("prompt_tokens_mean", 0.0)
        prompts = f"{tokens:,.0f} tokens on average. {100 * share:.0f} % of the tokens were cached."
        lines += [style.dim(line) for line in _wrap_after("  prompts: ", prompts)]
    lines += [style.dim(line) for line in _wrap_after("  reports: ", _ages_text(record.ages_s))]
    return lines


def _reasons(record: RecordDocument, style: Style) -> list[str]:
    """Return a row for each term and each clamp. `>` marks the binding term or clamp."""
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
            row = _wrap_after(f"  {'>' if binding else ' '} {name:<{width}}  {replicas:>8}  ", why)
            lines += [style.bold(line) if binding else line for line in row]
    return lines


def _ages_text(ages_s: Mapping[str, float]) -> str:
    """Return how old the reports of a decision are, and name the replicas whose reports are stale."""
    if not ages_s:
        return "none"
    oldest_last = sorted(ages_s.items(), key=lambda item: item[1])
    if len(oldest_last) <= _SOURCES_SHOWN:
        return ", ".join(f"{source} {seconds(age)}" for source, age in oldest_last) + " old"
    text = f"{len(ages_s)} reports, {seconds(oldest_last[0][1])} to {seconds(oldest_last[-1][1])} old"
    stale = [source for source, age in oldest_last if age > STALE_AFTER_S]
    if not stale:
        return text
    shown = ", ".join(stale[:_SOURCES_SHOWN]) + (", …" if len(stale) > _SOURCES_SHOWN else "")
    return f"{text}; too old to use: {shown}"


def _strip_binding(reason: str, binding: str) -> str:
    """Return the reason without the name of the binding term or clamp, which the line already shows."""
    return reason.removeprefix(f"{binding}: ")


def _wrap_after(head: str, text: str, indent: int | None = None) -> list[str]:
    """Return `text` after `head`, wrapped at 100 columns and indented to its own start or to `indent`."""
    return textwrap.wrap(
        text or "-",
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * (len(head) if indent is None else indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
