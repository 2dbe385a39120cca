"""The compiled part of the replay: every engine step of every replica, and the way of every request.

An engine step is vLLM's: whoever runs goes first, each decoding sequence with one token and each prompt
under way with a chunk; then, unless somebody was preempted, waiting requests are admitted while the batch,
the step's token budget and the KV cache have room, the latter for the whole prompt. A step takes

    base + per_sequence * decodes + per_kv_token * their tokens + per_prefill_token * prompt tokens

seconds, and its tokens come at its end. Where the KV cache is full the request admitted last is preempted
and computed again. Prompts find what their replica's prefix cache still holds, oldest use evicted first.

Sequences that decode all get one token a step, so a step is taken for all of them at once: what each has
follows from the number of steps since, and it is looked at when its last token comes or it is preempted.

One file, because the compiler's cache knows only the file that it compiled; what is a constant in others
comes in as one of the rules.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from replay.fleet.layout import (
    BINS,
    E2E,
    ITL,
    ITL_PART,
    NEVER,
    NONE,
    PREFILL_PART,
    QUEUE_PART,
    RATIO,
    READY,
    SHORTEST_S,
    SLICE_S,
    SLICES,
    TTFT,
    TTFT_COLD,
    WINDOW_BINS,
    WINDOW_RATIO,
    WINDOW_SHORTEST_S,
    Floats,
    Ints,
    Memory,
)

_PER_LOG, _LOG_SHORTEST = 1.0 / math.log(RATIO), math.log(SHORTEST_S)
_WINDOW_PER_LOG, _WINDOW_LOG_SHORTEST = 1.0 / math.log(WINDOW_RATIO), math.log(WINDOW_SHORTEST_S)
_PERCENTILES = np.array([0.50, 0.90, 0.95, 0.99])
_ITL_PERCENTILES = np.array([0.50, 0.90, 0.95, 0.96, 0.97, 0.98, 0.99])

# Nothing in here allocates, and whoever calls keeps the arrays. Counting references to them all the same,
# in atomic operations at every look at a record, would take half of the time.
_entry = njit(cache=True, error_model="numpy", _nrt=False, no_cfunc_wrapper=True)
# Wrappers for calls from Python are half of the time it takes to compile.
_inner = njit(cache=True, error_model="numpy", _nrt=False, no_cfunc_wrapper=True, no_cpython_wrapper=True)


@_inner
def _log(value: float) -> float:
    """Of a latency, for its bin: 0 s has none."""
    return math.log(max(value, SHORTEST_S))


@_inner
def _bin(log: float) -> int:
    """Of the histograms over the whole replay, by the logarithm of a latency."""
    return min(max(int((log - _LOG_SHORTEST) * _PER_LOG), 0), BINS - 1)


@_inner
def _window_bin(log: float) -> int:
    """Of those per window and of the last 30 s, which are `LatencyWindow`'s."""
    return min(max(int((log - _WINDOW_LOG_SHORTEST) * _WINDOW_PER_LOG), 0), WINDOW_BINS - 1)


@_inner
def _random(m: Memory) -> np.int64:
    """xorshift64: the next number, 0 to 2^62."""
    x = m.totals[0].random
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    m.totals[0].random = x
    # Signed: a remainder of an unsigned number and a signed one would be a float.
    return np.int64(x >> np.uint64(2))


@_inner
def _slice(m: Memory, r: int, t: float) -> int:
    """The slice of the recent past that `t` falls in, older ones emptied."""
    rep = m.replicas[r]
    at = int(t / SLICE_S)
    for number in range(max(rep.slice + 1, at - SLICES + 1), at + 1):
        for part in range(m.recent.shape[1]):
            for b in range(WINDOW_BINS):
                m.recent[r, part, SLICES, b] -= m.recent[r, part, number % SLICES, b]
                m.recent[r, part, number % SLICES, b] = 0.0
    rep.slice = max(rep.slice, at)
    return at % SLICES


@_inner
def _note(m: Memory, r: int, part: int, at: int, where: int, count: float) -> None:
    """Add to what a replica reports of its last 30 s, in bin `where`."""
    m.recent[r, part, at, where] += count
    m.recent[r, part, SLICES, where] += count


@_inner
def _place(m: Memory, r: int, block: int) -> int:
    """Where a block is in a replica's prefix cache; NONE if it is not."""
    place = m.replicas[r].cached_blocks - 1
    while place >= 0 and m.cache[r, place] != block:
        place -= 1
    return place


@_inner
def _use(m: Memory, r: int, block: int) -> None:
    """Make a block the one of a replica's prefix cache that was used last."""
    rep = m.replicas[r]
    place = _place(m, r, block)
    if place == NONE:
        # Where the cache is full the place of the block used first becomes free.
        place = 0
        if rep.cached_blocks < m.cache.shape[1]:
            place = rep.cached_blocks
            rep.cached_blocks += 1
    for i in range(place, rep.cached_blocks - 1):
        m.cache[r, i] = m.cache[r, i + 1]
    m.cache[r, rep.cached_blocks - 1] = block


@_inner
def _cached(m: Memory, r: int, q: int) -> int:
    """Prompt tokens found in the prefix cache; the prompt's blocks are in it afterwards."""
    request = m.requests[q]
    hits = 0
    while hits < request.blocks and _place(m, r, m.blocks[q, hits]) != NONE:
        _use(m, r, m.blocks[q, hits])
        hits += 1
    # The first block last: without it the others are of no use, so a prompt's end is evicted before it.
    for i in range(request.blocks - 1, -1, -1):
        _use(m, r, m.blocks[q, i])
    # The last token is always computed: its logits are the first output token's.
    return min(hits * m.rules[0].block_tokens, request.prompt - 1)


@_inner
def _preempt(m: Memory, r: int, t: float) -> None:
    """Send the request admitted last back to the head of the queue."""
    rep = m.replicas[r]
    rep.batch_size -= 1
    q = m.batch[r, rep.batch_size]
    request = m.requests[q]
    if request.todo:
        rep.prefilling -= 1
        rep.kv_used -= request.computed
    else:
        request.generated = request.output - (request.ends - rep.taken)
        request.last_at = t
        context = request.prompt + request.generated - 1
        rep.context -= context
        rep.kv_used -= context
        rep.recompute_tokens += request.prompt + request.generated
    request.todo = request.prompt + request.generated
    request.computed = 0
    request.next = rep.head
    rep.head = q
    if rep.tail == NONE:
        rep.tail = q
    rep.waiting += 1
    rep.preemptions += 1
    m.totals[0].preemptions += 1


@_inner
def _schedule_running(m: Memory, r: int, t: float) -> int:
    """Give everybody in the batch tokens of the next step, one after the other; returns the budget left."""
    rules = m.rules[0]
    rep = m.replicas[r]
    budget = rules.max_num_batched_tokens
    i = 0
    while i < rep.batch_size:
        request = m.requests[m.batch[r, i]]
        want = min(request.todo - request.computed, budget) if request.todo else 1
        while rep.kv_used + want > rules.kv_cache_tokens and i < rep.batch_size:
            _preempt(m, r, t)
        if i == rep.batch_size:
            break
        request.scheduled = want
        rep.kv_used += want
        budget -= want
        if request.todo:
            rep.step_prefill += want
        i += 1
    return budget


@_inner
def _admit(m: Memory, r: int, t: float, budget: int) -> None:
    """Admit waiting requests to the next step, which has `budget` tokens left, as long as there is room."""
    rules = m.rules[0]
    rep = m.replicas[r]
    while rep.head != NONE and rep.batch_size < rules.max_num_seqs and budget > 0:
        q = rep.head
        request = m.requests[q]
        if rep.kv_used + request.todo > rules.kv_cache_tokens:
            return
        rep.head = request.next
        if rep.head == NONE:
            rep.tail = NONE
        rep.waiting -= 1
        request.computed = _cached(m, r, q) if request.blocks and not request.generated else 0
        want = min(request.todo - request.computed, budget)
        request.scheduled = want
        if request.admitted < 0:
            request.admitted = t
        m.batch[r, rep.batch_size] = q
        rep.batch_size += 1
        rep.prefilling += 1
        rep.kv_used += request.computed + want
        rep.step_prefill += want
        budget -= want


@_inner
def _begin(m: Memory, r: int, t: float) -> None:
    """Begin the next step at `t`, if there is anything to do."""
    rules = m.rules[0]
    rep = m.replicas[r]
    rep.step_end = math.inf
    rep.step_prefill = 0
    preemptions = rep.preemptions
    if rep.prefilling or rep.kv_used + rep.batch_size > rules.kv_cache_tokens:
        budget = _schedule_running(m, r, t)
    else:
        rep.kv_used += rep.batch_size
        budget = rules.max_num_batched_tokens - rep.batch_size
    decodes, kv = rep.batch_size - rep.prefilling, rep.context
    if rep.head != NONE and rep.preemptions == preemptions:
        _admit(m, r, t, budget)
    prefill = rep.step_prefill
    if decodes + prefill == 0:
        return
    took = (
        rules.base_s
        + rules.per_sequence_s * decodes
        + rules.per_kv_token_s * kv
        + rules.per_prefill_token_s * prefill
    )
    rep.step_began = t
    rep.step_end = t + took
    rep.step_decodes = decodes
    rep.steps += 1
    rep.sum_s += took
    rep.sum_batch += decodes
    rep.sum_prefill += prefill
    rep.sum_kv += kv
    rep.busy_s += took
    rep.prefilled += prefill


@_inner
def _first_token(m: Memory, r: int, q: int, t: float, at: int) -> None:
    rules = m.rules[0]
    request = m.requests[q]
    rep = m.replicas[r]
    totals = m.totals[0]
    ttft = t - request.arrived
    number = int(request.arrived / rules.window_s)
    window = m.windows[number]
    ok = ttft <= rules.ttft_target_s
    window.ttft_ok += ok
    window.cold += request.cold
    window.cold_ok += ok and request.cold
    log = _log(ttft)
    m.window_ttft[number, _window_bin(log)] += 1
    m.histograms[TTFT_COLD if request.cold else TTFT, _bin(log)] += 1
    totals.first_tokens += 1
    totals.ttft_sum += ttft
    _note(m, r, QUEUE_PART, at, _window_bin(_log(request.admitted - request.last_at)), 1.0)
    _note(m, r, PREFILL_PART, at, _window_bin(_log(t - request.admitted)), 1.0)
    rep.waiting_tokens -= request.prompt
    rep.pending_tokens -= request.pending
    if request.pending > 0:
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


@_inner
def _itl(m: Memory, r: int, gap: float, count: float, t: float, at: int) -> None:
    rules = m.rules[0]
    totals = m.totals[0]
    number = int(t / rules.window_s)
    window = m.windows[number]
    window.itl += count
    if gap <= rules.itl_target_s:
        window.itl_ok += count
    log = _log(gap)
    where = _window_bin(log)
    m.window_itl[number, where] += count
    m.histograms[ITL, _bin(log)] += count
    _note(m, r, ITL_PART, at, where, count)
    totals.itl_count += count
    totals.itl_sum += count * gap


@_inner
def _leave(m: Memory, r: int, q: int, t: float) -> None:
    """A request has all of its tokens."""
    rep = m.replicas[r]
    totals = m.totals[0]
    request = m.requests[q]
    rep.in_flight -= 1
    rep.finished += 1
    rep.finished_prompt += request.prompt
    rep.finished_output += request.output
    rep.last_end = t
    totals.finished += 1
    totals.finished_prompt += request.prompt
    totals.finished_output += request.output
    totals.open -= 1
    m.histograms[E2E, _bin(_log(t - request.arrived))] += 1
    request.next = totals.free
    totals.free = q


@_inner
def _sort_out(m: Memory, r: int, t: float, at: int) -> None:
    """At the end of a step, prompts that are done become decodes, and who has all of his tokens leaves."""
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
            request.todo = 0
            if request.generated:
                rep.recompute_tokens -= request.prompt + request.generated
                _itl(m, r, t - request.last_at, 1.0, t, at)
            else:
                _first_token(m, r, q, t, at)
            request.generated += 1
            request.ends = rep.taken + request.output - request.generated
            rep.generated += 1
            rep.context += request.prompt + request.generated - 1
        if request.ends > rep.taken:
            rep.next_end = min(rep.next_end, request.ends)
            m.batch[r, kept] = q
            kept += 1
            continue
        context = request.prompt + request.output - 1
        rep.context -= context
        rep.kv_used -= context
        _leave(m, r, q, t)
    rep.batch_size = kept


@_inner
def _end_step(m: Memory, r: int) -> None:
    """End the step under way of a replica, and begin its next."""
    rep = m.replicas[r]
    t = rep.step_end
    at = _slice(m, r, t)
    rep.taken += 1
    rep.generated += rep.step_decodes
    rep.context += rep.step_decodes
    if rep.prefilling or rep.taken == rep.next_end:
        _sort_out(m, r, t, at)
    if rep.step_decodes:
        _itl(m, r, t - rep.step_began, float(rep.step_decodes), t, at)
    if m.totals[0].held_head != NONE and rep.status == READY:
        rep.step_end = -1.0  # still under way: what is sent now is for the step that begins below
        release(m, t)
    _begin(m, r, t)


@_inner
def _choose(m: Memory, limit: int, pending: int, t: float) -> int:
    """The ready replica for the next request, of those with fewer than `limit` in flight; NONE without one.

    As `ReplicaSet.take`: where the request would wait within its patience, the fewest tokens made late; else
    the least load. Of equals the fewest tokens pending, then in flight, and of those the longest unused.
    """
    rules = m.rules[0]
    totals = m.totals[0]
    if rules.two_choices:
        return _choose_of_two(m, limit)
    patient = rules.patience_s > 0.0 and totals.pace_s > 0.0 and pending > 0
    most = oldest = 0.0
    if patient:
        in_time = rules.patience_s * totals.pace_tokens / totals.pace_s
        worth = (rules.group_requests + 1) * totals.prompt_tokens / totals.prompts
        most = min(in_time, worth) - pending
        oldest = t - rules.patience_s
    best = NONE
    least_waits = True
    least = 0.0
    least_ahead = fewest = last = 0
    for r in range(totals.used):
        rep = m.replicas[r]
        if rep.status != READY or rep.in_flight >= limit:
            continue
        ahead = rep.pending_tokens
        under_way = rep.group_tokens > 0
        waits = not patient or ahead > most or rep.in_flight >= rules.max_num_seqs
        waits = waits or (under_way and rep.group_since < oldest)
        if waits:
            if not least_waits:
                continue
            ahead = 0
            cost = 1.0 * (rep.pending_tokens + rules.sequence_tokens * rep.in_flight)
        else:
            cost = 1.0 * rep.in_flight
            if under_way:
                if rep.next_requests == 0:
                    cost *= 0.5
                elif rep.next_requests < rules.group_requests:
                    cost = 0.0
        if best != NONE and waits == least_waits:
            if cost > least:
                continue
            if cost == least:
                if ahead > least_ahead:
                    continue
                if ahead == least_ahead:
                    if rep.in_flight > fewest:
                        continue
                    if rep.in_flight == fewest and rep.last_sent >= last:
                        continue
        best, least_waits, least, least_ahead = r, waits, cost, ahead
        fewest, last = rep.in_flight, rep.last_sent
    return best


@_inner
def _choose_of_two(m: Memory, limit: int) -> int:
    """The fewer requests in flight of two replicas drawn at random; the one drawn first of equals."""
    totals = m.totals[0]
    ready = 0
    for r in range(totals.used):
        ready += m.replicas[r].status == READY and m.replicas[r].in_flight < limit
    if not ready:
        return NONE
    first_number = _random(m) % ready
    second_number = _random(m) % max(ready - 1, 1)
    if second_number >= first_number:
        second_number += 1
    first = second = NONE
    number = 0
    for r in range(totals.used):
        if m.replicas[r].status == READY and m.replicas[r].in_flight < limit:
            if number == first_number:
                first = r
            if number == second_number:
                second = r
            number += 1
    if second != NONE and m.replicas[second].in_flight < m.replicas[first].in_flight:
        return second
    return first


@_inner
def _send(m: Memory, r: int, q: int, t: float) -> None:
    """Hand a request to a replica."""
    rep = m.replicas[r]
    request = m.requests[q]
    # When the engine got it: its own queueing time counts from here.
    request.last_at = t
    request.next = NONE
    if rep.tail == NONE:
        rep.head = q
    else:
        m.requests[rep.tail].next = q
    rep.tail = q
    rep.waiting += 1
    rep.waiting_tokens += request.prompt
    rep.in_flight += 1
    rep.pending_tokens += request.pending
    if request.pending > 0:
        request.sent = t
        request.group = rep.group
        if rep.group_tokens == 0:
            rep.group_tokens = request.pending
            rep.group_since = t
        else:
            request.group += 1
            rep.next_tokens += request.pending
            rep.next_requests += 1
        request.before = rep.pending_tokens
    m.totals[0].admitted += 1
    rep.last_sent = int(m.totals[0].admitted)
    if rep.step_end == math.inf:
        _begin(m, r, t)


@_entry
def release(m: Memory, t: float) -> None:
    """Send on requests that are held, as far as ready replicas have room for them."""
    totals = m.totals[0]
    rules = m.rules[0]
    while totals.held_head != NONE:
        best = _choose(m, rules.room, m.requests[totals.held_head].pending, t)
        if best == NONE:
            return
        q = totals.held_head
        request = m.requests[q]
        totals.held_head = request.next
        totals.held -= 1
        totals.held_bytes -= request.body
        if totals.held_head == NONE:
            totals.held_tail = NONE
            totals.held_bytes = 0.0  # and not what rounding has left
        request.cold = t - request.arrived > rules.cold_after_s
        _send(m, best, q, t)


@_inner
def _next_to_end(m: Memory) -> int:
    """The replica whose step ends next; NONE without any."""
    best = NONE
    for r in range(m.totals[0].used):
        if best == NONE or m.replicas[r].step_end < m.replicas[best].step_end:
            best = r
    return best


@_entry
def advance(m: Memory, until: float) -> None:
    """Take every step that ends by `until`."""
    # While requests are held, of all replicas in the order of time: whose step ends first has room first.
    while m.totals[0].held_head != NONE:
        r = _next_to_end(m)
        if r == NONE or m.replicas[r].step_end > until:
            return
        _end_step(m, r)
    for r in range(m.totals[0].used):
        while m.replicas[r].step_end <= until:
            _end_step(m, r)


@_inner
def _refuse(m: Memory, t: float) -> None:
    m.totals[0].rejected += 1
    m.windows[int(t / m.rules[0].window_s)].rejected += 1


@_inner
def _take_record(m: Memory, t: float, prompt: int, output: int, body: float) -> int:
    """A free record, made that of a request that arrives now."""
    totals = m.totals[0]
    q = totals.free
    request = m.requests[q]
    totals.free = request.next
    totals.open += 1
    request.arrived = request.last_at = t
    request.admitted = -1.0
    request.prompt = request.todo = prompt
    request.output = output
    request.computed = request.scheduled = request.generated = request.cold = request.blocks = 0
    request.ends = NEVER
    request.body = body
    request.next = NONE
    return q


@_entry
def arrive(
    m: Memory,
    arrival_s: Floats,
    prompts: Ints,
    outputs: Ints,
    block_starts: Ints,
    blocks: Ints,
    start: int,
    until: float,
    noise: float,
) -> int:
    """Take the requests of a chunk from `start` on that arrive before `until`, and the steps between them.

    Returns the index of the first not taken: one that arrives later, or that finds no free record.
    """
    totals = m.totals[0]
    rules = m.rules[0]
    for i in range(start, len(arrival_s)):
        t = arrival_s[i]
        if t >= until or totals.free == NONE:
            return i
        advance(m, t)
        prompt, output = prompts[i], outputs[i]
        body = prompt * rules.bytes_per_token * (1.0 + noise * ((_random(m) % 2001) / 1000.0 - 1.0))
        totals.arrivals += 1
        totals.arrived_bytes += body
        totals.arrived_tokens += prompt
        m.windows[int(t / rules.window_s)].requests += 1
        # On an empty replica: its chunks one after the other.
        alone = rules.base_s * math.ceil(prompt / rules.max_num_batched_tokens)
        totals.infeasible += alone + rules.per_prefill_token_s * prompt > rules.ttft_target_s
        if prompt + output > rules.kv_cache_tokens:
            totals.too_long += 1
            _refuse(m, t)
            continue
        pending = min(int(body) // rules.bytes_per_pending_token, rules.most_pending_tokens)
        best = _choose(m, rules.most_in_flight, pending, t) if totals.held_head == NONE else NONE
        if best == NONE:
            full = False
            if totals.held_head == NONE:
                for r in range(totals.used):
                    full |= m.replicas[r].status == READY
            if full or totals.held >= rules.max_held:
                _refuse(m, t)
                continue
        q = _take_record(m, t, prompt, output, body)
        m.requests[q].pending = pending
        if len(block_starts):
            carried = min(block_starts[i + 1] - block_starts[i], m.blocks.shape[1], m.cache.shape[1])
            m.requests[q].blocks = carried
            for j in range(carried):
                m.blocks[q, j] = blocks[block_starts[i] + j]
        if best != NONE:
            _send(m, best, q, t)
            continue
        if totals.held_tail == NONE:
            totals.held_head = q
        else:
            m.requests[totals.held_tail].next = q
        totals.held_tail = q
        totals.held += 1
        totals.held_bytes += body
    return len(arrival_s)


@_inner
def _read_percentiles(m: Memory, r: int, out: Floats) -> None:
    """Write of each part of latency how many were observed in the last 30 s, and percentiles."""
    for part in range(3):
        percents = _ITL_PERCENTILES if part == ITL_PART else _PERCENTILES
        first = 29 if part == ITL_PART else 20 + 4 * part
        count = below = 0.0
        for b in range(WINDOW_BINS):
            count += m.recent[r, part, SLICES, b]
        out[28 if part == ITL_PART else 19] = count
        done = 0
        for b in range(WINDOW_BINS):
            here = m.recent[r, part, SLICES, b]
            while done < len(percents) and here > 0 and below + here >= percents[done] * count:
                share = min(max((percents[done] * count - below) / here, 0.0), 1.0)
                out[first + done] = WINDOW_SHORTEST_S * WINDOW_RATIO ** (b + share)
                done += 1
            below += here
        for i in range(first + done, first + len(percents)):
            out[i] = 0.0


@_entry
def report(m: Memory, slots: Ints, now: float, reports: Floats) -> None:
    """Write what replicas report of themselves, in the order of `EngineSignals`; their means begin anew."""
    for k in range(len(slots)):
        r = slots[k]
        rep = m.replicas[r]
        out = reports[k]
        _slice(m, r, now)
        # Preempted ones do not count as waiting for their first token.
        q = rep.head
        while q != NONE and m.requests[q].generated:
            q = m.requests[q].next
        steps = max(rep.steps, 1.0)
        out[0] = rep.batch_size
        out[1] = rep.waiting
        out[2] = rep.context + rep.batch_size - rep.prefilling + rep.recompute_tokens
        out[3] = rep.waiting_tokens
        out[4] = now - m.requests[q].last_at if q != NONE else 0.0
        out[5] = rep.in_flight
        out[6] = rep.kv_used / m.rules[0].kv_cache_tokens
        out[7] = m.rules[0].kv_cache_tokens
        out[8] = rep.prefilled
        out[9] = rep.generated
        out[10] = rep.finished
        out[11] = rep.finished_prompt
        out[12] = rep.finished_output
        out[13] = rep.preemptions
        out[14] = rep.steps
        out[15] = rep.sum_s / steps
        out[16] = rep.sum_batch / steps
        out[17] = rep.sum_prefill / steps
        out[18] = rep.sum_kv / steps
        _read_percentiles(m, r, out)
        rep.steps = rep.sum_s = rep.sum_batch = rep.sum_prefill = rep.sum_kv = 0.0
