"""Requests that arrive: sent to a replica, queued for a cold start, or refused."""

import math

from replay.fleet.kernel.compiler import entry, inner
from replay.fleet.kernel.routing import choose, next_random, release_background, send
from replay.fleet.kernel.scheduler import line_up
from replay.fleet.kernel.steps import advance
from replay.fleet.layout import (
    BACKGROUND,
    INTERACTIVE,
    NEVER,
    NONE,
    READY,
    STANDARD,
    Floats,
    Ints,
    Memory,
)


@inner
def refuse(m: Memory, t: float) -> None:
    """Count a request that is refused."""
    m.totals[0].rejected += 1
    m.windows[int(t / m.rules[0].window_s)].rejected += 1


@inner
def take_record(m: Memory, t: float, lane: int, adapter: int, prompt: int, output: int, body: float) -> int:
    """Take a free record for a request that arrives now; return its index."""
    totals = m.totals[0]
    q: int = totals.free
    request = m.requests[q]
    totals.free = request.next
    totals.open += 1
    request.lane = lane
    request.adapter = adapter
    request.load_tokens = 0
    request.arrived = request.last_at = t
    request.admitted = -1.0
    request.prompt = request.todo = prompt
    request.output = output
    request.computed = request.scheduled = request.generated = request.cold = request.blocks = 0
    request.ends = NEVER
    request.body = body
    request.next = NONE
    return q


@inner
def give_back_record(m: Memory, q: int) -> None:
    """Make the record of a request that is refused free again."""
    totals = m.totals[0]
    m.requests[q].next = totals.free
    totals.free = q
    totals.open -= 1


@inner
def copy_blocks(m: Memory, q: int, block_starts: Ints, blocks: Ints, i: int) -> None:
    """Give a request the prefix blocks of the chunk's request `i`, as many as are followed."""
    carried = min(block_starts[i + 1] - block_starts[i], m.blocks.shape[1], m.cache.shape[1])
    m.requests[q].blocks = carried
    for j in range(carried):
        m.blocks[q, j] = blocks[block_starts[i] + j]


@entry
def arrive(
    m: Memory,
    arrival_s: Floats,
    prompts: Ints,
    outputs: Ints,
    block_starts: Ints,
    blocks: Ints,
    lanes: Ints,
    adapters: Ints,
    start: int,
    until: float,
    noise: float,
) -> int:
    """Take the requests of a chunk from `start` on that arrive before `until`, and the steps between them.

    Return the index of the first request not taken: one that arrives later, or that finds no free record.
    """
    totals = m.totals[0]
    rules = m.rules[0]
    for i in range(start, len(arrival_s)):
        t = arrival_s[i]
        if t >= until or totals.free == NONE:
            return i
        advance(m, t)
        prompt, output = prompts[i], outputs[i]
        body = prompt * rules.bytes_per_token * (1.0 + noise * ((next_random(m) % 2001) / 1000.0 - 1.0))
        lane = lanes[i] if len(lanes) else STANDARD
        adapter = adapters[i] if len(adapters) else 0
        if lane == BACKGROUND:
            totals.background_arrivals += 1
            totals.background_tokens += prompt + output
            m.windows[int(t / rules.window_s)].background_arrivals += 1
            if prompt + output > rules.kv_cache_tokens:
                totals.background_refused += 1
                continue
            q = take_record(m, t, lane, adapter, prompt, output, body)
            m.requests[q].pending = 0
            if len(block_starts):
                copy_blocks(m, q, block_starts, blocks, i)
            totals.background_head, totals.background_tail = line_up(
                m, totals.background_head, totals.background_tail, q
            )
            totals.background_held += 1
            totals.background_held_bytes += body
            release_background(m, t)
            continue
        totals.arrivals += 1
        totals.arrived_bytes += body
        totals.arrived_tokens += prompt
        window = m.windows[int(t / rules.window_s)]
        window.requests += 1
        window.interactive += lane == INTERACTIVE
        # Infeasible: on an empty replica its chunks, one after the other, already miss the target.
        alone = rules.base_s * math.ceil(prompt / rules.max_num_batched_tokens)
        totals.infeasible += alone + rules.per_prefill_token_s * prompt > rules.ttft_target_s
        if prompt + output > rules.kv_cache_tokens:
            totals.too_long += 1
            refuse(m, t)
            continue
        pending = min(int(body) // rules.bytes_per_pending_token, rules.most_pending_tokens)
        q = take_record(m, t, lane, adapter, prompt, output, body)
        m.requests[q].pending = pending
        if len(block_starts):
            copy_blocks(m, q, block_starts, blocks, i)
        best = choose(m, rules.most_in_flight, q, pending, t) if totals.held_head == NONE else NONE
        if best == NONE:
            full = False
            if totals.held_head == NONE:
                for r in range(totals.used):
                    full |= m.replicas[r].status == READY
            if full or totals.held >= rules.max_held:
                give_back_record(m, q)
                refuse(m, t)
                continue
        if best != NONE:
            send(m, best, q, t)
            continue
        totals.held_head, totals.held_tail = line_up(m, totals.held_head, totals.held_tail, q)
        totals.held += 1
        totals.held_bytes += body
    return len(arrival_s)
