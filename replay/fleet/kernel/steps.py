"""The end of an engine step: first tokens, inter-token latencies, and finished requests.

Streams also leave a replica here: those of a draining replica move to others.
"""

import math

from replay.fleet.kernel.adapters import stop_using
from replay.fleet.kernel.compiler import entry, inner
from replay.fleet.kernel.histograms import bin_of, current_slice, log_of, note, window_bin_of
from replay.fleet.kernel.routing import (
    choose,
    enqueue,
    free_place,
    send_background,
    send_queued,
)
from replay.fleet.kernel.scheduler import begin_step
from replay.fleet.layout import (
    BACKGROUND,
    E2E,
    INTERACTIVE,
    ITL,
    ITL_PART,
    NEVER,
    NONE,
    PREFILL_PART,
    QUEUE_PART,
    READY,
    TTFT,
    TTFT_BACKGROUND,
    TTFT_COLD,
    TTFT_INTERACTIVE,
    Memory,
)


@inner
def count_first_token(m: Memory, r: int, q: int, t: float, at: int) -> None:
    """Count the first token of a request, and update the rate of prefill that the ingress observes."""
    rules = m.rules[0]
    request = m.requests[q]
    rep = m.replicas[r]
    totals = m.totals[0]
    ttft = t - request.arrived
    rep.waiting_tokens -= request.prompt
    if request.lane == BACKGROUND:
        m.histograms[TTFT_BACKGROUND, bin_of(log_of(ttft))] += 1
        return
    number = int(request.arrived / rules.window_s)
    window = m.windows[number]
    ok = ttft <= rules.ttft_target_s
    window.ttft_ok += ok
    window.cold += request.cold
    window.cold_ok += ok and request.cold
    log = log_of(ttft)
    m.window_ttft[number, window_bin_of(log)] += 1
    m.histograms[TTFT_COLD if request.cold else TTFT, bin_of(log)] += 1
    if request.lane == INTERACTIVE:
        window.interactive_ok += ok
        m.histograms[TTFT_INTERACTIVE, bin_of(log)] += 1
    totals.first_tokens += 1
    totals.ttft_sum += ttft
    note(m, r, QUEUE_PART, at, window_bin_of(log_of(request.admitted - request.last_at)), 1.0)
    note(m, r, PREFILL_PART, at, window_bin_of(log_of(t - request.admitted)), 1.0)
    rep.pending_tokens -= request.pending
    rep.load_tokens -= request.load_tokens
    if request.pending > 0:
        if not request.load_tokens:
            seconds = t - request.sent
            tokens = 1.0 * request.before
            if totals.pace_s > 0.0:
                tokens = min(tokens, 2.0 * seconds * totals.pace_tokens / totals.pace_s)
            totals.pace_s = totals.pace_s * rules.pace_fade + seconds
            totals.pace_tokens = totals.pace_tokens * rules.pace_fade + tokens
            totals.prompts = totals.prompts * rules.pace_fade + 1.0
            totals.prompt_tokens = totals.prompt_tokens * rules.pace_fade + request.pending
        if request.group >= rep.group:
            rep.group_tokens = rep.next_tokens if request.group == rep.group else 0
            rep.next_tokens = rep.next_requests = 0
            rep.group = request.group + 1
            rep.group_since = t


@inner
def count_itl(m: Memory, r: int, gap: float, count: float, t: float, at: int) -> None:
    """Count `count` inter-token latencies of `gap` seconds."""
    rules = m.rules[0]
    totals = m.totals[0]
    number = int(t / rules.window_s)
    window = m.windows[number]
    window.itl += count
    if gap <= rules.itl_target_s:
        window.itl_ok += count
    log = log_of(gap)
    where = window_bin_of(log)
    m.window_itl[number, where] += count
    m.histograms[ITL, bin_of(log)] += count
    note(m, r, ITL_PART, at, where, count)
    totals.itl_count += count
    totals.itl_sum += count * gap


@inner
def finish(m: Memory, r: int, q: int, t: float) -> None:
    """Count a request that has all of its tokens, and free its record."""
    rep = m.replicas[r]
    totals = m.totals[0]
    request = m.requests[q]
    rep.last_end = t
    stop_using(m, r, q)
    totals.open -= 1
    if request.lane == BACKGROUND:
        rep.background -= 1
        rep.background_batch -= 1
        totals.background_finished += 1
        totals.background_last_end = max(totals.background_last_end, t)
        m.windows[int(t / m.rules[0].window_s)].background_finished += 1
    else:
        rep.in_flight -= 1
        rep.finished += 1
        rep.finished_prompt += request.prompt
        rep.finished_output += request.output
        totals.finished += 1
        totals.finished_prompt += request.prompt
        totals.finished_output += request.output
        m.histograms[E2E, bin_of(log_of(t - request.arrived))] += 1
    request.next = totals.free
    totals.free = q


@inner
def update_batch(m: Memory, r: int, t: float, at: int) -> None:
    """Let finished prompts decode from now on, and remove answered requests from the batch."""
    rep = m.replicas[r]
    rep.next_end = NEVER
    kept = 0
    for i in range(rep.batch_size):
        q = m.batch[r, i]
        request = m.requests[q]
        if request.todo:
            request.computed += request.scheduled
            if request.computed < request.todo:
                m.batch[r, kept] = q
                kept += 1
                continue
            rep.prefilling -= 1
            rep.background_prefilling -= request.lane == BACKGROUND
            request.todo = 0
            if request.generated:
                rep.recompute_tokens -= request.prompt + request.generated
                if request.lane != BACKGROUND:
                    count_itl(m, r, t - request.last_at, 1.0, t, at)
            else:
                count_first_token(m, r, q, t, at)
            request.generated += 1
            request.ends = rep.taken + request.output - request.generated
            rep.context += request.prompt + request.generated - 1
        if request.ends > rep.taken:
            rep.next_end = min(rep.next_end, request.ends)
            m.batch[r, kept] = q
            kept += 1
            continue
        context = request.prompt + request.output - 1
        rep.context -= context
        rep.kv_used -= context
        finish(m, r, q, t)
    rep.batch_size = kept


@inner
def end_step(m: Memory, r: int) -> None:
    """End a replica's step, and begin its next one."""
    rep = m.replicas[r]
    totals = m.totals[0]
    t = rep.step_end
    at = current_slice(m, r, t)
    rep.taken += 1
    rep.context += rep.step_decodes
    for i in range(rep.batch_size - rep.paused, rep.batch_size):
        request = m.requests[m.batch[r, i]]
        if request.todo == 0:
            request.ends += 1
    if rep.prefilling or rep.taken == rep.next_end:
        update_batch(m, r, t, at)
    if rep.step_decodes > rep.step_background:
        count_itl(m, r, t - rep.step_began, float(rep.step_decodes - rep.step_background), t, at)
    if rep.status == READY and (totals.held_head != NONE or totals.background_head != NONE):
        rep.step_end = -1.0  # not idle: requests sent now join the step that begins below
        if totals.held_head != NONE:
            send_queued(m, t)
        while totals.background_head != NONE and totals.held_head == NONE:
            if rep.in_flight + rep.background >= m.rules[0].room:
                break
            send_background(m, r, t)
    begin_step(m, r, t)


@inner
def next_to_end(m: Memory) -> int:
    """The replica whose step ends next; NONE without any."""
    best = NONE
    for r in range(m.totals[0].used):
        if best == NONE or m.replicas[r].step_end < m.replicas[best].step_end:
            best = r
    return best


@entry
def advance(m: Memory, until: float) -> None:
    """Take every step that ends by `until`."""
    # While requests are queued for a cold start, steps are taken in the order of time across all replicas:
    # the replica whose step ends first has room first.
    while m.totals[0].held_head != NONE:
        r = next_to_end(m)
        if r == NONE or m.replicas[r].step_end > until:
            return
        end_step(m, r)
    for r in range(m.totals[0].used):
        while m.replicas[r].step_end <= until:
            end_step(m, r)


@inner
def leave(m: Memory, r: int, q: int) -> None:
    """Remove a request that decodes from the step under way; its token of that step is lost."""
    rep = m.replicas[r]
    request = m.requests[q]
    request.generated = request.output - (request.ends - rep.taken)
    request.last_at = rep.step_began
    stop_using(m, r, q)
    context = request.prompt + request.generated - 1
    rep.context -= context
    rep.kv_used -= context + 1
    rep.step_decodes -= 1
    if request.lane == BACKGROUND:
        rep.step_background -= 1
        rep.background_batch -= 1
        rep.background -= 1
    else:
        rep.in_flight -= 1


@entry
def move_streams(m: Memory, r: int, t: float) -> None:
    """Move each request that decodes on replica `r` to another that would run it at once, if there is one.

    There its prompt and what was generated are prefilled, as after a preemption. The client sees the pause.
    """
    rules = m.rules[0]
    rep = m.replicas[r]
    rep.next_end = NEVER
    kept = 0
    for i in range(rep.batch_size):
        q = m.batch[r, i]
        request = m.requests[q]
        other = NONE
        if not request.todo and request.lane == BACKGROUND:
            if i < rep.batch_size - rep.paused:
                other = free_place(m)
        elif not request.todo:
            other = choose(m, min(rules.max_num_seqs, rules.most_in_flight), q, 0, t)
        if other == NONE:
            if not request.todo:
                rep.next_end = min(rep.next_end, request.ends)
            m.batch[r, kept] = q
            kept += 1
            continue
        leave(m, r, q)
        rep.last_end = t
        request.todo = request.prompt + request.generated
        request.computed = request.pending = request.load_tokens = 0
        m.replicas[other].recompute_tokens += request.todo
        m.totals[0].moves += 1
        enqueue(m, other, q, t)
    rep.batch_size = kept
    if not rep.in_flight and not rep.background and rep.step_end < math.inf:
        rep.busy_s -= rep.step_end - t
        rep.step_end = math.inf
