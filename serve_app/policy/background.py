"""The term `background` of a decision: the replicas that background work needs, and why. Pure.

Background requests use the time that other lanes leave free. Their latencies, queues and tokens count in no
other term. Background requests start, keep or add replicas only as far as knobs allow.
"""

from serve_app.policy.capacity_model import KV_FILL, Sizing, round_up
from serve_app.policy.inputs import Inputs
from serve_app.policy.reasons import amount, are, counted

_LARGEST_BATCH = 256.0
"""The default of a model's setting `max_num_seqs`, which the policy does not know."""
_URGENT_SHARE = 0.5
"""The share of the time until a completion window ends that the work of one replica must take, before the
policy acts. The estimate of the work may be half of the truth."""
_LEAST_MARGIN_S = 10.0
"""The least margin of a start's estimate. Reports of batches and replicas are seconds old."""
_LEAST_SHARE = 0.1
"""The least time for which a backlog is planned, as a share of `background_backlog_s`. It counts for a
backlog that is late, or that grows all the time."""


def need(inputs: Inputs, others: int) -> tuple[int, str] | None:
    """Return the replicas that background work needs, and why; None for a decision without this term.

    `others` is the number of replicas that all other terms need.
    """
    knobs, worked_s = inputs.knobs, inputs.background_for_s
    if worked_s is None:
        return None
    if not inputs.seen.background_requests and (others or not inputs.snapshot.target):
        return None
    if knobs.background_deadlines and inputs.background_hours_open:
        for_windows = _for_windows(inputs)
        if for_windows is not None and for_windows[0] > others:
            return for_windows
    if inputs.background_has_replica and (backlog_s := knobs.background_backlog_s) is not None:
        return _for_backlog(inputs, max(backlog_s - worked_s, _LEAST_SHARE * backlog_s))
    if others:
        return 0, _uses_idle_time(inputs, others)
    if inputs.background_has_replica:
        return 1, "The lane background has work, and the knob background_wakes lets it have 1 replica."
    if not inputs.snapshot.target:
        return 0, _waits(inputs)
    keep_s, idle_s = knobs.background_keep_s, inputs.idle_s or 0.0
    over = "" if idle_s < keep_s else ", which are over"
    keeps = f"Background requests keep the last replica for {amount(keep_s)} s after the last other request"
    return int(idle_s < keep_s), f"{keeps}{over}."


def work_s(inputs: Inputs) -> float:
    """Return the estimated seconds that one replica needs for all background requests, in a full batch.

    The length of an answer is not known before its end. The estimate is the mean length in other lanes.
    """
    seen, sizing, batches = inputs.seen, inputs.sizing, inputs.snapshot.batches
    prefill_s = seen.background_tokens * sizing.step.per_prefill_token_s * sizing.mix.computed_share
    # On average, half of the answer of a running request is still to come.
    answers = seen.background_requests - seen.background_running_requests / 2
    unsent = max(0, batches.lines - batches.in_flight)
    return prefill_s + answers * _answer_s(sizing, seen.kv_cache_tokens) + unsent * _line_s(inputs)


def signals(inputs: Inputs) -> dict[str, float]:
    """Return the numbers about background requests, by the names in docs/operating.md."""
    seen = inputs.seen
    return {
        "background_running_requests": seen.background_running_requests,
        "background_waiting_requests": seen.background_waiting_requests,
        "background_held_requests": seen.background_held_requests,
        "background_work_s": work_s(inputs),
        "batch_lines": inputs.snapshot.batches.lines,
        "batches_late": inputs.snapshot.batches.late,
    }


def _line_s(inputs: Inputs) -> float:
    """Return the estimated seconds that one replica needs for a line of a batch, in a full batch."""
    seen, sizing, batches = inputs.seen, inputs.sizing, inputs.snapshot.batches
    tokens = seen.tokens_per_byte * batches.body_bytes / max(1, batches.lines)
    prefill_s = tokens * sizing.step.per_prefill_token_s * sizing.mix.computed_share
    return prefill_s + _answer_s(sizing, seen.kv_cache_tokens)


def _for_windows(inputs: Inputs) -> tuple[int, str] | None:
    """Return the replicas with which each batch meets its completion window; None while there is time.

    The batch with the earliest end goes first, so a batch waits for all batches before it. Running replicas
    work while others start. A new replica must be ready in time, even if its start takes half as long again.
    """
    snapshot, one_s = inputs.snapshot, _line_s(inputs)
    start_s = snapshot.horizon_s
    margin_s = max(start_s / 2, _LEAST_MARGIN_S)
    busy = inputs.arrivals.rps * (inputs.sizing.step.prefill_s(inputs.sizing.mix) + one_s)
    free = max(0.0, snapshot.ready - busy)
    lines, share, urgent, out_of_reach = 0, 0.0, False, False
    for of_batch, due in snapshot.batches.due:
        lines += of_batch
        work, left_s = lines * one_s, max(due - inputs.unix_now, 1.0)
        spare_s = left_s - start_s - margin_s
        reachable = spare_s > 0 or start_s + work <= left_s
        urgent = urgent or (reachable and spare_s <= max(work / _URGENT_SHARE, margin_s))
        if work <= free * left_s:
            need = work / left_s
        else:
            need = free + (work - free * left_s) / max(left_s - start_s, margin_s)
            most = max(free, snapshot.target - busy)
            if need > most and (spare_s <= 0 or snapshot.ready < snapshot.target):
                need, out_of_reach = most, out_of_reach or spare_s <= 0
        share = max(share, need)
    if not urgent and (not lines or not snapshot.target):
        return None  # a running replica stays, because its start would have to be repeated
    replicas = max(1, round_up(share + busy))
    why = f"The work of batches takes {amount(share, 2)} replicas until their completion windows end."
    if busy:
        why += f" Other lanes use the time of {amount(busy, 2)} replicas."
    if out_of_reach:
        why += " Some of the work is left out, because a new replica would not be ready in time."
    return replicas, f"{why} So {are(replicas, 'replica')} needed."


def left(inputs: Inputs) -> str:
    """Return a sentence about open batches, with a space before it; "" without any."""
    left = inputs.snapshot.batches
    if not left.batches:
        return ""
    have = "has" if left.batches == 1 else "have"
    text = f" {_batches(left.batches)} {have} {counted(left.lines, 'line')} left"
    if left.lines_per_s is not None:
        text += f", and {amount(left.lines_per_s, 2)} lines/s are answered"
    if not left.late:
        return f"{text}."
    by = "" if left.late_s is None else f" by {amount(left.late_s)} s"
    return f"{text}. At this rate, {_batches(left.late)} would miss the completion window{by}."


def _batches(number: int) -> str:
    return "1 batch" if number == 1 else f"{number:,} batches"


def _answer_s(sizing: Sizing, kv_cache_tokens: float) -> float:
    """Return the seconds that decoding an answer of mean length takes, as its share of a full batch."""
    step, mix, batch = sizing.step, sizing.mix, _LARGEST_BATCH
    if kv_cache_tokens > 0:
        batch = max(1.0, min(batch, KV_FILL * kv_cache_tokens / mix.context_tokens))
    return mix.output_tokens * (step.sequence_s(mix) + step.base_s / batch)


def _for_backlog(inputs: Inputs, left_s: float) -> tuple[int, str]:
    """Return the replicas that finish the backlog in `left_s` seconds, beside the work of other lanes."""
    sizing, work = inputs.sizing, work_s(inputs)
    one_s = sizing.step.prefill_s(sizing.mix) + _answer_s(sizing, inputs.seen.kv_cache_tokens)
    busy = inputs.arrivals.rps * one_s
    replicas = max(1, round_up(work / left_s + busy))
    why = f"The background lane has {amount(work)} s of work, which should be done in {amount(left_s)} s."
    if busy:
        why += f" Other lanes use the time of {amount(busy, 2)} replicas."
    return replicas, f"{why} So {are(replicas, 'replica')} needed."


def _uses_idle_time(inputs: Inputs, others: int) -> str:
    """Return whose time background requests use, while other lanes need `others` replicas."""
    seen, ready = inputs.seen, inputs.snapshot.ready
    if not seen.background_running_requests + seen.background_waiting_requests:
        why = (
            f"{are(seen.background_held_requests, 'background request')} waiting for a free place in a batch."
        )
    elif ready > others:
        be = "is" if others == 1 else "are"
        why = f"{others:,} of {counted(ready, 'replica')} {be} needed."
        why += f" The background lane uses the idle time of {ready - others:,}."
    else:
        why = "The background lane uses the free places in the batches of all replicas."
    return f"{why} Background requests add no replica."


def _waits(inputs: Inputs) -> str:
    """Return why background requests wait while the model has zero replicas."""
    held = are(inputs.seen.background_held_requests, "background request")
    if inputs.knobs.background_wakes and not inputs.background_hours_open:
        return f"{held} waiting for background_hours, or for another request to start a replica."
    return f"{held} waiting until another request starts a replica."
