"""vLLM's scheduler: which requests get tokens of a replica's next step."""

import math

from replay.fleet.kernel.compiler import inner
from replay.fleet.kernel.prefixes import cached_tokens
from replay.fleet.kernel.step_time import step_s
from replay.fleet.layout import NONE, Memory


@inner
def preempt(m: Memory, r: int, t: float) -> None:
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


@inner
def schedule_running(m: Memory, r: int, t: float) -> int:
    """Give each request of the batch its tokens of the next step; return the token budget that is left."""
    rules = m.rules[0]
    rep = m.replicas[r]
    budget: int = rules.max_num_batched_tokens
    i = 0
    while i < rep.batch_size:
        request = m.requests[m.batch[r, i]]
        want = min(request.todo - request.computed, budget) if request.todo else 1
        while rep.kv_used + want > rules.kv_cache_tokens and i < rep.batch_size:
            preempt(m, r, t)
        if i == rep.batch_size:
            break
        request.scheduled = want
        rep.kv_used += want
        budget -= want
        if request.todo:
            rep.step_prefill += want
        i += 1
    return budget


@inner
def admit(m: Memory, r: int, t: float, budget: int) -> None:
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
        request.computed = cached_tokens(m, r, q) if request.blocks and not request.generated else 0
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


@inner
def begin_step(m: Memory, r: int, t: float) -> None:
    """Begin the next step at `t`, if there is anything to do."""
    rules = m.rules[0]
    rep = m.replicas[r]
    rep.step_end = math.inf
    rep.step_prefill = 0
    preemptions = rep.preemptions
    if rep.prefilling or rep.kv_used + rep.batch_size > rules.kv_cache_tokens:
        budget = schedule_running(m, r, t)
    else:
        rep.kv_used += rep.batch_size
        budget = rules.max_num_batched_tokens - rep.batch_size
    decodes, kv = rep.batch_size - rep.prefilling, rep.context
    if rep.head != NONE and rep.preemptions == preemptions:
        admit(m, r, t, budget)
    prefill = rep.step_prefill
    if decodes + prefill == 0:
        return
    took = step_s(m, decodes, kv, prefill)
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
