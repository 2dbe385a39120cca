"""The compiled part of the replay: every engine step of every replica, and the way of every request.

An engine step is vLLM's: whoever runs goes first, each decoding sequence with one token and each prompt
under way with a chunk; then waiting requests are admitted while the batch, the step's token budget and
the KV cache have room. A step takes

    base + per_sequence * decoding sequences + per_kv_token * their tokens + per_prefill_token * prefill tokens

seconds, and its tokens come at its end. Where the KV cache is full the request admitted last is preempted
and computed again. Prompts find what their replica's prefix cache still holds, oldest use evicted first.

One file, because the compiler's cache knows only the file that it compiled.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from serve_app.replay.fleet.layout import (
    BINS,
    DRAINING,
    E2E,
    FREE,
    ITL,
    ITL_PART,
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

_PER_LOG = 1.0 / math.log(RATIO)
_WINDOW_PER_LOG = 1.0 / math.log(WINDOW_RATIO)
_COLD_AFTER_S = 0.5  # as in `serve_app.ingress_signals`
_PERCENTILES = np.array([0.50, 0.90, 0.95, 0.99])
_ITL_PERCENTILES = np.array([0.50, 0.90, 0.95, 0.96, 0.97, 0.98, 0.99])


@njit(cache=True)
def _bin(value: float) -> int:
    if value <= SHORTEST_S:
        return 0
    return min(int(math.log(value / SHORTEST_S) * _PER_LOG), BINS - 1)


@njit(cache=True)
def _window_bin(value: float) -> int:
    if value <= WINDOW_SHORTEST_S:
        return 0
    return min(int(math.log(value / WINDOW_SHORTEST_S) * _WINDOW_PER_LOG), WINDOW_BINS - 1)


@njit(cache=True)
def _random(m: Memory) -> int:
    """xorshift64: the next number, 0 to 2^62."""
    x = m.totals[0].random
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    m.totals[0].random = x
    return int(x >> np.uint64(2))


@njit(cache=True)
def _slice(m: Memory, r: int, t: float) -> int:
    """The slice of the recent past that `t` falls in, older ones emptied."""
    rep = m.replicas[r]
    at = int(t // SLICE_S)
    if at > rep.slice:
        for number in range(max(rep.slice + 1, at - SLICES + 1), at + 1):
            m.recent[r, :, SLICES] -= m.recent[r, :, number % SLICES]
            m.recent[r, :, number % SLICES] = 0.0
        rep.slice = at
    return at % SLICES


@njit(cache=True)
def _note(m: Memory, r: int, part: int, at: int, value: float, count: float) -> None:
    """Add to what a replica reports of its last 30 s."""
    where = _window_bin(value)
    m.recent[r, part, at, where] += count
    m.recent[r, part, SLICES, where] += count


@njit(cache=True)
def _append(m: Memory, r: int, q: int) -> None:
    """Put a request at the end of a replica's queue."""
    rep = m.replicas[r]
    m.requests[q].next = NONE
    if rep.tail == NONE:
        rep.head = q
    else:
        m.requests[rep.tail].next = q
    rep.tail = q
    rep.waiting += 1
    rep.waiting_tokens += m.requests[q].prompt


@njit(cache=True)
def _cached(m: Memory, r: int, q: int) -> int:
    """Prompt tokens found in the prefix cache; the prompt's blocks are in it afterwards."""
    request = m.requests[q]
    rep = m.replicas[r]
    room = m.cache.shape[1]
    hits = 0
    hitting = True
    for i in range(request.blocks):
        block = m.blocks[q, i]
        place = NONE
        for j in range(rep.cached_blocks - 1, -1, -1):
            if m.cache[r, j] == block:
                place = j
                break
        if place == NONE:
            hitting = False
            if rep.cached_blocks < room:
                rep.cached_blocks += 1
            place = 0 if rep.cached_blocks == room else rep.cached_blocks - 1
        elif hitting:
            hits += 1
        for j in range(place, rep.cached_blocks - 1):
            m.cache[r, j] = m.cache[r, j + 1]
        m.cache[r, rep.cached_blocks - 1] = block
    # The last token is always computed: its logits are the first output token's.
    return min(hits * m.rules[0].block_tokens, request.prompt - 1)


@njit(cache=True)
def _preempt(m: Memory, r: int) -> None:
    """Send the request admitted last back to the head of the queue."""
    rep = m.replicas[r]
    rep.batch_size -= 1
    q = m.batch[r, rep.batch_size]
    request = m.requests[q]
    rep.kv_used -= request.computed
    if request.computed < request.todo:
        rep.prefilling_tokens -= request.prompt
    request.todo = request.prompt + request.generated
    request.computed = 0
    request.next = rep.head
    rep.head = q
    if rep.tail == NONE:
        rep.tail = q
    rep.waiting += 1
    rep.waiting_tokens += request.prompt
    rep.preemptions += 1
    m.totals[0].preemptions += 1


@njit(cache=True)
def _begin(m: Memory, r: int, t: float) -> None:
    """Begin the next step at `t`, if there is anything to do."""
    rules = m.rules[0]
    rep = m.replicas[r]
    rep.step_end = math.inf
    budget = rules.max_num_batched_tokens
    decodes = kv = prefill = 0
    i = 0
    while i < rep.batch_size:
        q = m.batch[r, i]
        request = m.requests[q]
        left = request.todo - request.computed
        want = min(left, budget) if left > 0 else 1
        while rep.kv_used + want > rules.kv_cache_tokens and i < rep.batch_size:
            _preempt(m, r)
        if i == rep.batch_size:
            break
        rep.kv_used += want
        request.scheduled = want
        budget -= want
        if left > 0:
            prefill += want
        else:
            decodes += 1
            kv += request.computed
        i += 1
    while rep.head != NONE and rep.batch_size < rules.max_num_seqs and budget > 0:
        q = rep.head
        request = m.requests[q]
        if rep.kv_used + min(request.todo, budget) > rules.kv_cache_tokens:
            break
        request.computed = _cached(m, r, q) if request.blocks and not request.generated else 0
        want = min(request.todo - request.computed, budget)
        rep.head = request.next
        if rep.head == NONE:
            rep.tail = NONE
        rep.waiting -= 1
        rep.waiting_tokens -= request.prompt
        rep.prefilling_tokens += request.prompt
        rep.kv_used += request.computed + want
        request.scheduled = want
        if request.admitted < 0:
            request.admitted = t
        m.batch[r, rep.batch_size] = q
        rep.batch_size += 1
        prefill += want
        budget -= want
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


@njit(cache=True)
def _first_token(m: Memory, r: int, q: int, t: float, at: int) -> None:
    rules = m.rules[0]
    request = m.requests[q]
    rep = m.replicas[r]
    totals = m.totals[0]
    ttft = t - request.arrived
    window = m.windows[int(request.arrived / rules.window_s)]
    ok = ttft <= rules.ttft_target_s
    window.ttft_ok += ok
    window.cold += request.cold
    window.cold_ok += ok and request.cold
    m.window_ttft[int(request.arrived / rules.window_s), _window_bin(ttft)] += 1
    m.histograms[TTFT_COLD if request.cold else TTFT, _bin(ttft)] += 1
    totals.first_tokens += 1
    totals.ttft_sum += ttft
    _note(m, r, QUEUE_PART, at, request.admitted - request.last_at, 1.0)
    _note(m, r, PREFILL_PART, at, t - request.admitted, 1.0)
    rep.pending_tokens -= request.body * 0.25


@njit(cache=True)
def _itl(m: Memory, r: int, gap: float, count: float, t: float, at: int) -> None:
    rules = m.rules[0]
    totals = m.totals[0]
    window = m.windows[int(t / rules.window_s)]
    window.itl += count
    if gap <= rules.itl_target_s:
        window.itl_ok += count
    m.window_itl[int(t / rules.window_s), _window_bin(gap)] += count
    m.histograms[ITL, _bin(gap)] += count
    _note(m, r, ITL_PART, at, gap, count)
    totals.itl_count += count
    totals.itl_sum += count * gap


@njit(cache=True)
def _complete(m: Memory, r: int) -> None:
    """End the step under way: its tokens are there, and who has all of his leaves."""
    rep = m.replicas[r]
    totals = m.totals[0]
    t = rep.step_end
    at = _slice(m, r, t)
    alike = 0
    kept = 0
    for i in range(rep.batch_size):
        q = m.batch[r, i]
        request = m.requests[q]
        was = request.computed
        request.computed += request.scheduled
        if was < request.todo and request.computed < request.todo:
            m.batch[r, kept] = q
            kept += 1
            continue
        if was < request.todo:
            rep.prefilling_tokens -= request.prompt
            # From here on every step computes the token before.
            request.todo = 0
        if request.generated == 0:
            _first_token(m, r, q, t, at)
        elif request.last_at == rep.step_began:
            alike += 1
        else:
            _itl(m, r, t - request.last_at, 1.0, t, at)
        request.generated += 1
        request.last_at = t
        rep.generated += 1
        if request.generated < request.output:
            m.batch[r, kept] = q
            kept += 1
            continue
        rep.kv_used -= request.computed
        rep.in_flight -= 1
        rep.from_hold -= request.from_hold
        rep.finished += 1
        rep.finished_prompt += request.prompt
        rep.finished_output += request.output
        totals.finished += 1
        totals.finished_prompt += request.prompt
        totals.finished_output += request.output
        totals.open -= 1
        totals.last_end = max(totals.last_end, t)
        m.histograms[E2E, _bin(t - request.arrived)] += 1
        request.next = totals.free
        totals.free = q
    rep.batch_size = kept
    if alike:
        _itl(m, r, t - rep.step_began, float(alike), t, at)


@njit(cache=True)
def _choose(m: Memory) -> int:
    """The ready replica to send a request to, as the ingress picks it; NONE without one."""
    totals = m.totals[0]
    rules = m.rules[0]
    ready = 0
    for r in range(totals.used):
        ready += m.replicas[r].status == READY
    if not ready:
        return NONE
    start = _random(m) % totals.used
    if rules.two_choices and ready > 1:
        first = second = NONE
        skip_first = _random(m) % ready
        skip_second = _random(m) % (ready - 1)
        if skip_second >= skip_first:
            skip_second += 1
        seen = 0
        for r in range(totals.used):
            if m.replicas[r].status == READY:
                if seen == skip_first:
                    first = r
                if seen == skip_second:
                    second = r
                seen += 1
        return first if m.replicas[first].in_flight <= m.replicas[second].in_flight else second
    best = NONE
    least = math.inf
    for i in range(totals.used):
        r = (start + i) % totals.used
        rep = m.replicas[r]
        if rep.status != READY:
            continue
        score = rep.pending_tokens + rules.alpha * rep.in_flight
        if score < least or (score == least and rep.in_flight < m.replicas[best].in_flight):
            best, least = r, score
    return best


@njit(cache=True)
def _send(m: Memory, r: int, q: int, t: float) -> None:
    """Hand a request to a replica."""
    rep = m.replicas[r]
    request = m.requests[q]
    request.replica = r
    # When the engine got it: its own queueing time counts from here.
    request.last_at = t
    rep.in_flight += 1
    rep.from_hold += request.from_hold
    rep.pending_tokens += request.body * 0.25
    m.totals[0].admitted += 1
    _append(m, r, q)
    if rep.step_end == math.inf:
        _begin(m, r, t)


@njit(cache=True)
def release(m: Memory, t: float) -> None:
    """Send on requests that are held, as far as ready replicas have room for them."""
    totals = m.totals[0]
    rules = m.rules[0]
    while totals.held_head != NONE:
        best = NONE
        for r in range(totals.used):
            rep = m.replicas[r]
            if rep.status == READY and rep.in_flight < rules.release:
                if best == NONE or rep.in_flight < m.replicas[best].in_flight:
                    best = r
        if best == NONE:
            return
        q = totals.held_head
        request = m.requests[q]
        totals.held_head = request.next
        if totals.held_head == NONE:
            totals.held_tail = NONE
        totals.held -= 1
        totals.held_bytes -= request.body
        request.from_hold = 1
        request.cold = t - request.arrived > _COLD_AFTER_S
        _send(m, best, q, t)


@njit(cache=True)
def _advance_replica(m: Memory, r: int, until: float) -> None:
    rep = m.replicas[r]
    totals = m.totals[0]
    while rep.step_end <= until:
        t = rep.step_end
        _complete(m, r)
        if totals.held_head != NONE and rep.status == READY and rep.in_flight < m.rules[0].release:
            rep.step_end = -1.0  # under way: what is sent now is for the step that begins below
            release(m, t)
        _begin(m, r, t)


@njit(cache=True)
def advance(m: Memory, until: float) -> None:
    """Take every step that ends by `until`."""
    for r in range(m.totals[0].used):
        if m.replicas[r].step_end <= until:
            _advance_replica(m, r, until)


@njit(cache=True)
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
        window = m.windows[int(t / rules.window_s)]
        window.requests += 1
        body = prompt * rules.bytes_per_token * (1.0 + noise * ((_random(m) % 2001) / 1000.0 - 1.0))
        totals.arrivals += 1
        totals.arrived_bytes += body
        totals.arrived_tokens += prompt
        # On an empty replica: its chunks one after the other.
        alone = rules.base_s * math.ceil(prompt / rules.max_num_batched_tokens)
        if alone + rules.per_prefill_token_s * prompt > rules.ttft_target_s:
            totals.infeasible += 1
        if prompt + output > rules.kv_cache_tokens:
            totals.too_long += 1
            totals.rejected += 1
            window.rejected += 1
            continue
        best = _choose(m)
        hold = best == NONE or totals.held_head != NONE
        if hold and totals.held >= rules.max_held:
            totals.rejected += 1
            window.rejected += 1
            continue
        q = totals.free
        request = m.requests[q]
        totals.free = request.next
        totals.open += 1
        request.arrived = t
        request.admitted = -1.0
        request.last_at = t
        request.prompt = request.todo = prompt
        request.output = output
        request.computed = request.scheduled = request.generated = 0
        request.cold = request.from_hold = 0
        request.body = body
        request.replica = NONE
        request.next = NONE
        request.blocks = 0
        if len(block_starts):
            carried = min(block_starts[i + 1] - block_starts[i], m.blocks.shape[1])
            request.blocks = carried
            for j in range(carried):
                m.blocks[q, j] = blocks[block_starts[i] + j]
        if not hold:
            _send(m, best, q, t)
            continue
        if totals.held_tail == NONE:
            totals.held_head = q
        else:
            m.requests[totals.held_tail].next = q
        totals.held_tail = q
        totals.held += 1
        totals.held_bytes += body
        release(m, t)
    return len(arrival_s)


@njit(cache=True)
def start_replica(m: Memory, r: int) -> None:
    """Make a record a replica that is starting, with nothing of who had it before."""
    rep = m.replicas[r]
    rep.status = 1
    rep.step_end = math.inf
    rep.head = rep.tail = NONE
    rep.batch_size = rep.waiting = rep.kv_used = rep.waiting_tokens = rep.prefilling_tokens = 0
    rep.in_flight = rep.from_hold = rep.cached_blocks = 0
    rep.pending_tokens = rep.steps = rep.sum_s = rep.sum_batch = rep.sum_prefill = rep.sum_kv = 0.0
    rep.busy_s = rep.prefilled = rep.generated = rep.finished = rep.finished_prompt = 0.0
    rep.finished_output = rep.preemptions = 0.0
    rep.slice = 0
    m.recent[r] = 0.0
    m.totals[0].used = max(m.totals[0].used, r + 1)


@njit(cache=True)
def _read_percentiles(m: Memory, r: int, part: int, percents: Floats, out: Floats) -> float:
    """Write the percentiles of the last 30 s to `out`; returns how many observations."""
    count = m.recent[r, part, SLICES].sum()
    if count == 0:
        out[: len(percents)] = 0.0
        return 0.0
    below = 0.0
    next_one = 0
    for b in range(WINDOW_BINS):
        here = m.recent[r, part, SLICES, b]
        while next_one < len(percents) and here > 0 and below + here >= percents[next_one] * count:
            share = (percents[next_one] * count - below) / here
            out[next_one] = WINDOW_SHORTEST_S * WINDOW_RATIO ** (b + min(max(share, 0.0), 1.0))
            next_one += 1
        below += here
    return count


@njit(cache=True)
def report(m: Memory, r: int, now: float, out: Floats) -> None:
    """Write what a replica reports of itself, in the order of `EngineSignals`, and begin its means anew."""
    rep = m.replicas[r]
    _slice(m, r, now)
    out[0] = rep.batch_size
    out[1] = rep.waiting
    out[2] = max(0, rep.kv_used - rep.prefilling_tokens)
    out[3] = rep.waiting_tokens + rep.prefilling_tokens
    out[4] = now - m.requests[rep.head].last_at if rep.head != NONE else 0.0
    out[5] = rep.in_flight
    out[6] = rep.kv_used / m.rules[0].kv_cache_tokens
    out[7] = m.rules[0].kv_cache_tokens
    out[8] = rep.prefilled
    out[9] = rep.generated
    out[10] = rep.finished
    out[11] = rep.finished_prompt
    out[12] = rep.finished_output
    out[13] = rep.preemptions
    steps = max(rep.steps, 1.0)
    out[14] = rep.steps
    out[15] = rep.sum_s / steps
    out[16] = rep.sum_batch / steps
    out[17] = rep.sum_prefill / steps
    out[18] = rep.sum_kv / steps
    rep.steps = rep.sum_s = rep.sum_batch = rep.sum_prefill = rep.sum_kv = 0.0
    out[19] = _read_percentiles(m, r, QUEUE_PART, _PERCENTILES, out[20:])
    _read_percentiles(m, r, PREFILL_PART, _PERCENTILES, out[24:])
    out[28] = _read_percentiles(m, r, ITL_PART, _ITL_PERCENTILES, out[29:])


__all__ = ["DRAINING", "FREE", "advance", "arrive", "release", "report", "start_replica"]
