"""One engine: its prefix cache, and vLLM's scheduler.

An engine step is vLLM's. The running requests go first: each decoding sequence gets one token, and each
prompt under way a chunk. Then, unless a request was preempted, waiting requests are admitted while the batch,
the step's token budget and the KV cache have room, the latter for the whole prompt. The tokens of a step come
at its end. If the KV cache is full, the request admitted last is preempted and computed again. A prompt finds
the blocks that its replica's prefix cache still holds; the longest unused block is evicted first.

Queues are in the order of lanes, and first come, first served within a lane. Requests of the lane
`background` stand at the end of the batch, so they get their tokens of a step last and are preempted first.
They are also preempted if a request of another lane needs their place in the batch or in the KV cache. That
request is admitted in the same step.

All sequences that decode get one token a step, so the kernel takes a step for all of them at once. The tokens
of each follow from the number of steps since. The kernel looks at a sequence when its last token comes, or
when it is preempted.

Throughout the kernel, `m` is the fleet's memory, `r` the index of a replica, `q` that of a request and `t` a
time.
"""

import math

from replay.fleet.kernel.compiler import inner
from replay.fleet.layout import BACKGROUND, NONE, Ints, Memory


@inner
def index_of(lists: Ints, r: int, count: int, block: int) -> int:
    """The index of a block among the `count` of replica `r`; NONE if it is not there."""
    index: int = count - 1
    while index >= 0 and lists[r, index] != block:
        index -= 1
    return index


@inner
def use(lists: Ints, r: int, count: int, block: int) -> int:
    """Make a block the one of replica `r` that was used last; return how many blocks it has then."""
    index = index_of(lists, r, count, block)
    if index == NONE:
        # A full list loses the block used longest ago.
        index = 0
        if count < lists.shape[1]:
            index = count
            count += 1
    for i in range(index, count - 1):
        lists[r, i] = lists[r, i + 1]
    lists[r, count - 1] = block
    return count


@inner
def cached_tokens(m: Memory, r: int, q: int) -> int:
    """The prompt tokens found in the prefix cache, which then gets all blocks of the prompt."""
    rep = m.replicas[r]
    request = m.requests[q]
    hits = 0
    while hits < request.blocks and index_of(m.cache, r, rep.cached_blocks, m.blocks[q, hits]) != NONE:
        rep.cached_blocks = use(m.cache, r, rep.cached_blocks, m.blocks[q, hits])
        hits += 1
    # The first block is used last, so that a prompt's end is evicted before its beginning.
    for i in range(request.blocks - 1, -1, -1):
        rep.cached_blocks = use(m.cache, r, rep.cached_blocks, m.blocks[q, i])
    # The last token is always computed: its logits are the first output token's.
    tokens: int = min(hits * m.rules[0].block_tokens, request.prompt - 1)
    if request.lane != BACKGROUND:
        m.totals[0].cached += tokens
    return tokens


@inner
def expected_tokens(m: Memory, r: int, q: int) -> int:
    """The prompt tokens that the ingress expects in a replica's prefix cache."""
    rep = m.replicas[r]
    request = m.requests[q]
    hits = 0
    while hits < request.blocks and index_of(m.indexed, r, rep.indexed_blocks, m.blocks[q, hits]) != NONE:
        hits += 1
    tokens: int = min(hits * m.rules[0].block_tokens, request.prompt)
    return tokens


@inner
def note_sent(m: Memory, r: int, q: int) -> None:
    """Note that a replica will have all of a prompt cached."""
    rep = m.replicas[r]
    for i in range(m.requests[q].blocks - 1, -1, -1):
        rep.indexed_blocks = use(m.indexed, r, rep.indexed_blocks, m.blocks[q, i])


@inner
def line_up(m: Memory, head: int, tail: int, q: int) -> tuple[int, int]:
    """Put a request behind those of its lane in a queue; return the queue's head and tail."""
    request = m.requests[q]
    request.next = NONE
    if tail == NONE:
        return q, q
    if m.requests[tail].lane <= request.lane:
        m.requests[tail].next = q
        return head, q
    return step_in(m, head, tail, q, request.lane + 1)


@inner
def step_in(m: Memory, head: int, tail: int, q: int, lane: int) -> tuple[int, int]:
    """Put a request before those of `lane` and of lower lanes; return the queue's head and tail."""
    before, behind = NONE, head
    while behind != NONE and m.requests[behind].lane < lane:
        before, behind = behind, m.requests[behind].next
    m.requests[q].next = behind
    if before == NONE:
        head = q
    else:
        m.requests[before].next = q
    return head, q if behind == NONE else tail


@inner
def preempt(m: Memory, r: int, t: float) -> None:
    """Send the last request of the batch back to the front of its lane in the queue."""
    rep = m.replicas[r]
    rep.batch_size -= 1
    q = m.batch[r, rep.batch_size]
    request = m.requests[q]
    if request.lane == BACKGROUND:
        rep.background_batch -= 1
        rep.background_prefilling -= request.todo > 0
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
    rep.head, rep.tail = step_in(m, rep.head, rep.tail, q, request.lane)
    rep.waiting += 1
    rep.preemptions += 1
    m.totals[0].preemptions += 1


@inner
def evict_background(m: Memory, r: int, t: float) -> None:
    """Preempt as many requests of the lane `background` as keep waiting requests from the next step."""
    rules = m.rules[0]
    rep = m.replicas[r]
    places = rules.max_num_seqs - rep.batch_size
    budget = rules.max_num_batched_tokens - rep.batch_size
    # Each sequence that decodes takes a token of the cache in the step.
    room = rules.kv_cache_tokens - rep.kv_used - rep.batch_size
    q = rep.head
    while q != NONE and m.requests[q].lane != BACKGROUND and budget > 0:
        todo = m.requests[q].todo
        places -= 1
        budget -= todo
        room -= todo
        q = m.requests[q].next
        while rep.background_batch and (places < 0 or room < 0):
            used = rep.kv_used
            preempt(m, r, t)
            places += 1
            room += used - rep.kv_used + 1


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
            if request.lane == BACKGROUND:
                rep.step_background_prefill += want
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
        at = rep.batch_size
        if request.lane == BACKGROUND:
            rep.background_batch += 1
            rep.background_prefilling += 1
            rep.step_background_prefill += want
        else:
            for _ in range(rep.background_batch):
                m.batch[r, at] = m.batch[r, at - 1]
                at -= 1
        m.batch[r, at] = q
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
    rep.step_prefill = rep.step_background_prefill = 0
    if rep.background_batch and rep.head != NONE:
        evict_background(m, r, t)
    preemptions = rep.preemptions
    if rep.prefilling or rep.kv_used + rep.batch_size > rules.kv_cache_tokens:
        budget = schedule_running(m, r, t)
    else:
        rep.kv_used += rep.batch_size
        budget = rules.max_num_batched_tokens - rep.batch_size
    decodes, kv = rep.batch_size - rep.prefilling, rep.context
    rep.step_background = rep.background_batch - rep.background_prefilling
    if rep.head != NONE and rep.preemptions == preemptions:
        admit(m, r, t, budget)
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
    rep.prefilled += prefill - rep.step_background_prefill
