"""The pick of a replica for a request, and the queue of the ingress.

`tests/replay/fleet/test_routing.py` holds the pick equal to that of `serve_app.ingress`.
"""

import math

import numpy as np

from replay.fleet.kernel.adapters import load_tokens, use_adapter
from replay.fleet.kernel.compiler import entry, inner
from replay.fleet.kernel.scheduler import begin_step, expected_tokens, line_up, note_sent
from replay.fleet.layout import BACKGROUND, NONE, READY, Memory


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
def to_prefill(m: Memory, r: int, q: int, pending: int) -> int:
    """The tokens of `pending` that a replica does not have cached; at least the last one."""
    left: int = max(pending - pending * expected_tokens(m, r, q) // m.requests[q].prompt, 1)
    return left


@inner
def cached_anywhere(m: Memory, q: int) -> bool:
    """Whether the ingress expects that some replica has some of a prompt cached."""
    cached = False
    for r in range(m.totals[0].used):
        cached |= m.replicas[r].status == READY and expected_tokens(m, r, q) > 0
    return cached


@inner
def choose(m: Memory, limit: int, q: int, pending: int, t: float) -> int:
    """The ready replica for the next request, of those with fewer than `limit` in flight; NONE without one.

    If some replicas can prefill the request within the time it may wait, the result is the one where that
    delays requests least. Otherwise it is the one with the least load. Ties go to the fewest pending tokens,
    then the fewest requests in flight, then the replica unused for longest.
    """
    rules = m.rules[0]
    totals = m.totals[0]
    if rules.two_choices:
        return choose_of_two(m, limit)
    if rules.text_tree:
        return choose_by_text(m, limit, q)
    patient = rules.prefill_budget_s > 0.0 and totals.pace_s > 0.0 and pending > 0
    most = oldest = wait = 0.0
    if patient:
        in_time = rules.prefill_budget_s * totals.pace_tokens / totals.pace_s
        mean = totals.prompt_tokens / totals.prompts
        most = min(in_time, (rules.group_requests + 1) * mean)
        wait = max(totals.sharing, min(2.0 * mean / rules.max_num_batched_tokens - 1.0, 1.0))
        oldest = t - rules.prefill_budget_s
    best = NONE
    least_waits = True
    least = 0.0
    least_ahead = fewest = last = 0
    for r in range(totals.used):
        rep = m.replicas[r]
        if rep.status != READY or rep.in_flight >= limit:
            continue
        own = pending
        if rules.prefix_aware and pending > 0:
            own = to_prefill(m, r, q, pending)
        # During a load the engine stands still for all its requests. What it unloads is loaded again.
        own += 2 * load_tokens(m, r, q) * (1 + rep.in_flight)
        ahead = rep.pending_tokens
        under_way = rep.group_tokens > 0
        waits = not patient or (ahead + own) * rep.slowness > most or rep.in_flight >= rules.max_num_seqs
        waits = waits or (under_way and rep.group_since < oldest)
        if waits:
            if not least_waits:
                continue
            ahead = 0
            cost = 1.0 * (rep.pending_tokens + own + rules.sequence_tokens * rep.in_flight)
        else:
            cost = 1.0 * rep.in_flight
            if under_way:
                if rep.next_requests == 0 or rep.next_tokens + own > rules.max_num_batched_tokens:
                    cost *= 0.5
                elif rep.next_requests < rules.group_requests:
                    cost = 0.0
            cost = own * (1.0 + cost) + wait * ahead + rep.load_tokens
        cost *= rep.slowness
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
def choose_by_text(m: Memory, limit: int, q: int) -> int:
    """The pick of a router with a text tree and a threshold on the load, by SGLang's rule and numbers.

    The load is uneven if the busiest replica has over 64 requests and half as many again as the idlest one.
    If the load is uneven, or no replica has three tenths of the prompt cached, the replica with the fewest
    requests in flight is picked. Otherwise it is the one with the longest cached prefix.
    """
    idlest = best = NONE
    fewest = most_requests = most_tokens = 0
    for r in range(m.totals[0].used):
        rep = m.replicas[r]
        if rep.status != READY or rep.in_flight >= limit:
            continue
        if idlest == NONE or rep.in_flight < fewest:
            idlest, fewest = r, rep.in_flight
        most_requests = max(most_requests, rep.in_flight)
        cached = expected_tokens(m, r, q)
        if cached > most_tokens:
            best, most_tokens = r, cached
    uneven = most_requests - fewest > 64 and most_requests > 1.5 * fewest
    return idlest if uneven or most_tokens <= 0.3 * m.requests[q].prompt else best


@inner
def choose_of_two(m: Memory, limit: int) -> int:
    """The replica with fewer requests in flight of two drawn at random; on a tie, the one drawn first."""
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
    """Put a request at the end of its lane in a replica's queue. An idle replica begins a step at once."""
    rep = m.replicas[r]
    use_adapter(m, r, q)
    rep.head, rep.tail = line_up(m, rep.head, rep.tail, q)
    rep.waiting += 1
    if m.requests[q].lane == BACKGROUND:
        rep.background += 1
    else:
        rep.in_flight += 1
    if rep.step_end == math.inf:
        begin_step(m, r, t)


@inner
def send(m: Memory, r: int, q: int, t: float) -> None:
    """Hand a request to a replica."""
    rep = m.replicas[r]
    request = m.requests[q]
    # The engine's own queueing time counts from here.
    request.last_at = t
    rep.waiting_tokens += request.prompt
    if m.rules[0].prefix_aware and request.pending > 0:
        fade = m.rules[0].pace_fade
        m.totals[0].sharing = m.totals[0].sharing * fade + (1.0 - fade) * cached_anywhere(m, q)
        request.pending = to_prefill(m, r, q, request.pending)
    note_sent(m, r, q)
    request.load_tokens = load_tokens(m, r, q)
    request.pending += request.load_tokens
    rep.load_tokens += request.load_tokens
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
def send_queued(m: Memory, t: float) -> None:
    """Send the requests queued for a cold start, as far as ready replicas have room for them."""
    totals = m.totals[0]
    rules = m.rules[0]
    while totals.held_head != NONE:
        best = choose(m, rules.room, totals.held_head, m.requests[totals.held_head].pending, t)
        if best == NONE:
            return
        q = totals.held_head
        request = m.requests[q]
        totals.held_head = request.next
        totals.held -= 1
        totals.held_bytes -= request.body
        if totals.held_head == NONE:
            totals.held_tail = NONE
            totals.held_bytes = 0.0  # without what rounding has left
        request.cold = t - request.arrived > rules.cold_after_s
        send(m, best, q, t)


@inner
def send_background(m: Memory, r: int, t: float) -> None:
    """Hand a replica the next request of the lane `background`. The pick does not count these requests."""
    totals = m.totals[0]
    q = totals.background_head
    request = m.requests[q]
    totals.background_head = request.next
    totals.background_held -= 1
    totals.background_held_bytes -= request.body
    if totals.background_head == NONE:
        totals.background_tail = NONE
        totals.background_held_bytes = 0.0
    request.last_at = t
    m.replicas[r].waiting_tokens += request.prompt
    note_sent(m, r, q)
    enqueue(m, r, q, t)


@inner
def free_place(m: Memory) -> int:
    """The ready replica with the fewest requests, if it has room for one of `background`; otherwise NONE."""
    best = NONE
    fewest = m.rules[0].room
    for r in range(m.totals[0].used):
        rep = m.replicas[r]
        if rep.status == READY and rep.in_flight + rep.background < fewest:
            best, fewest = r, rep.in_flight + rep.background
    return best


@entry
def release_background(m: Memory, t: float) -> None:
    """Send requests of the lane `background` to replicas with room, unless other lanes are queued."""
    totals = m.totals[0]
    while totals.background_head != NONE and totals.held_head == NONE:
        best = free_place(m)
        if best == NONE:
            return
        send_background(m, best, t)
