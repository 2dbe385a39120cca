"""Streams of a draining replica that go on at others, as `Admission.take_for_move` and vLLM have it."""

import math

from replay.fleet.kernel.compiler import entry, inner
from replay.fleet.kernel.routing import choose, enqueue
from replay.fleet.layout import NEVER, NONE, Memory


@inner
def leave(m: Memory, r: int, q: int) -> None:
    """Take a request that decodes out of the step under way; its token of that step is lost."""
    rep = m.replicas[r]
    request = m.requests[q]
    request.generated = request.output - (request.ends - rep.taken)
    request.last_at = rep.step_began
    context = request.prompt + request.generated - 1
    rep.context -= context
    rep.kv_used -= context + 1
    rep.step_decodes -= 1
    rep.in_flight -= 1


@entry
def empty(m: Memory, r: int, t: float) -> None:
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
        other = NONE if request.todo else choose(m, min(rules.max_num_seqs, rules.most_in_flight), q, 0, t)
        if other == NONE:
            if not request.todo:
                rep.next_end = min(rep.next_end, request.ends)
            m.batch[r, kept] = q
            kept += 1
            continue
        leave(m, r, q)
        rep.last_end = t
        request.todo = request.prompt + request.generated
        request.computed = request.pending = 0
        m.replicas[other].recompute_tokens += request.todo
        m.totals[0].moves += 1
        enqueue(m, other, q, t)
    rep.batch_size = kept
    if not rep.in_flight:
        rep.busy_s -= rep.step_end - t
        rep.step_end = math.inf
