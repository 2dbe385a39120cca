"""How the ingress picks a replica for a request, as `Slots.take` does, and hands it over."""

import math

import numpy as np

from replay.fleet.kernel.compiler import entry, inner
from replay.fleet.kernel.scheduler import begin_step
from replay.fleet.layout import NONE, READY, Memory


@inner
def next_random(m: Memory) -> np.int64:
    """The next random number, from 0 to 2^62, by xorshift64."""
    x = m.totals[0].random
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    m.totals[0].random = x
    # Signed: a remainder of an unsigned number and a signed one would be a float.
    return np.int64(x >> np.uint64(2))


@inner
def choose(m: Memory, limit: int, pending: int, t: float) -> int:
    """The ready replica for the next request, of those with fewer than `limit` in flight; NONE without one.

    As `Slots.take`: if a replica can prefill the request within the time it may wait, the one where it
    delays the fewest requests; else the one with the least load. Ties go to the fewest pending tokens, then
    the fewest requests in flight, then the replica unused for longest.
    """
    rules = m.rules[0]
    totals = m.totals[0]
    if rules.two_choices:
        return choose_of_two(m, limit)
    patient = rules.prefill_budget_s > 0.0 and totals.pace_s > 0.0 and pending > 0
    most = oldest = 0.0
    if patient:
        in_time = rules.prefill_budget_s * totals.pace_tokens / totals.pace_s
        worth = (rules.group_requests + 1) * totals.prompt_tokens / totals.prompts
        most = min(in_time, worth) - pending
        oldest = t - rules.prefill_budget_s
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


@inner
def choose_of_two(m: Memory, limit: int) -> int:
    """The fewer requests in flight of two replicas drawn at random; the one drawn first of equals."""
    totals = m.totals[0]
    ready = 0
    for r in range(totals.used):
        ready += m.replicas[r].status == READY and m.replicas[r].in_flight < limit
    if not ready:
        return NONE
    first_number = next_random(m) % ready
    second_number = next_random(m) % max(ready - 1, 1)
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


@inner
def enqueue(m: Memory, r: int, q: int, t: float) -> None:
    """Put a request at the end of a replica's queue. An idle replica begins a step at once."""
    rep = m.replicas[r]
    m.requests[q].next = NONE
    if rep.tail == NONE:
        rep.head = q
    else:
        m.requests[rep.tail].next = q
    rep.tail = q
    rep.waiting += 1
    rep.in_flight += 1
    if rep.step_end == math.inf:
        begin_step(m, r, t)


@inner
def send(m: Memory, r: int, q: int, t: float) -> None:
    """Hand a request to a replica."""
    rep = m.replicas[r]
    request = m.requests[q]
    # When the engine got it: its own queueing time counts from here.
    request.last_at = t
    rep.waiting_tokens += request.prompt
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
    enqueue(m, r, q, t)


@entry
def release(m: Memory, t: float) -> None:
    """Send on requests that are held, as far as ready replicas have room for them."""
    totals = m.totals[0]
    rules = m.rules[0]
    while totals.held_head != NONE:
        best = choose(m, rules.room, m.requests[totals.held_head].pending, t)
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
        send(m, best, q, t)
