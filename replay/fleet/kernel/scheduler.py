"""One engine: its prefix cache, and vLLM's scheduler.

An engine step is vLLM's. The running requests go first: each decoding sequence gets one token, and each
prompt under way a chunk. Then, unless a request was preempted, waiting requests are admitted while the batch,
the step's token budget and the KV cache have room, the latter for the whole prompt. The tokens of a step come
at its end. If the KV cache is full, the request admitted last is preempted and computed again. A prompt finds
the blocks that its replica's prefix cache still holds; the longest unused block is evicted first.

Queues are in the order of lanes, and first come, first served within a lane. Requests of the lane
`background` stand at the end of the batch. They get their tokens of a step last, and are preempted first.
They are also preempted if a request of another lane needs their place in the batch or in the KV cache. That
request is admitted in the same step. A step that prefills a prompt of another lane prefills none of theirs. A
step takes no longer than `background_step_s` because of them: those for which no time is left pause.

All sequences that decode get one token a step, so the kernel takes a step for all of them at once. The tokens
of each follow from the number of steps since. The kernel looks at a sequence when its last token comes, or
when it is preempted.

Throughout the kernel, `m` is the fleet's memory, `r` the index of a replica, `q` that of a request and `t` a
time.
"""

import math

from replay.fleet.kernel.compiler import inner
from replay.fleet.layout import BACKGROUND, NONE, STANDARD, Ints, Memory


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
    """Give each request of the batch its tokens of the next step, except those of the lane `background`.

    Return the token budget that is left.
    """
    rules = m.rules[0]
    rep = m.replicas[r]
    budget: int = rules.max_num_batched_tokens
    i = 0
    while i < rep.batch_size - rep.background_batch:
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
def admit(m: Memory, r: int, t: float, budget: int, lowest: int) -> int:
    """Admit waiting requests of the lanes down to `lowest` to the next step, as long as there is room.

    The step has `budget` tokens left. Return those that are left afterwards.
    """
    rules = m.rules[0]
    rep = m.replicas[r]
    while rep.head != NONE and rep.batch_size < rules.max_num_seqs and budget > 0:
        q = rep.head
        request = m.requests[q]
        if request.lane > lowest or rep.kv_used + request.todo > rules.kv_cache_tokens:
            break
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
    return budget


@inner
def background_context(m: Memory, r: int) -> int:
    """The tokens in the KV cache of the sequences of the lane `background` that decode."""
    rep = m.replicas[r]
    context = 0
    for i in range(rep.batch_size - rep.background_batch, rep.batch_size):
        request = m.requests[m.batch[r, i]]
        if request.todo == 0:
            context += request.prompt + request.output - (request.ends - rep.taken) - 1
    return context


@inner
def schedule_background(m: Memory, r: int, t: float, budget: int, left_s: float, may_admit: bool) -> int:
    """Give running requests of the lane `background` their tokens of the next step, and admit others.

    The step has `budget` tokens left, and `left_s` seconds. Without other lanes in the batch, the first
    request gets at least one token. Return the KV cache tokens of the sequences that decode.
    """
    rules = m.rules[0]
    rep = m.replicas[r]
    context = 0
    held = rep.step_prefill > 0  # the step prefills prompts of other lanes
    i = rep.batch_size - rep.background_batch
    while i < rep.batch_size:
        request = m.requests[m.batch[r, i]]
        own = 0
        if request.todo and held:
            request.scheduled = 0
            i += 1
            continue
        if request.todo:
            want = min(request.todo - request.computed, budget, max(tokens_within(m, left_s), int(i == 0)))
            cost = want * rules.per_prefill_token_s
        else:
            want = min(1, budget)
            own = request.prompt + request.output - (request.ends - rep.taken) - 1
            cost = rules.per_sequence_s + rules.per_kv_token_s * own
        if want == 0 or (i > 0 and cost > left_s):
            break
        while rep.kv_used + want > rules.kv_cache_tokens and i < rep.batch_size:
            preempt(m, r, t)
        if i == rep.batch_size:
            break
        request.scheduled = want
        rep.kv_used += want
        budget -= want
        left_s -= cost
        if request.todo:
            rep.step_prefill += want
            rep.step_background_prefill += want
        else:
            rep.step_background += 1
            context += own
        i += 1
    rep.paused = rep.batch_size - i
    for j in range(i, rep.batch_size):
        m.requests[m.batch[r, j]].scheduled = 0
    if rep.paused == 0 and rep.head != NONE and may_admit and not held:
        admit(m, r, t, min(budget, max(tokens_within(m, left_s), int(i == 0))), BACKGROUND)
    return context


@inner
def tokens_within(m: Memory, seconds: float) -> int:
    """The prompt tokens that fit into so many seconds of a step."""
    per_token_s = m.rules[0].per_prefill_token_s
    most: int = m.rules[0].max_num_batched_tokens
    return most if most * per_token_s <= seconds else max(int(seconds / per_token_s), 0)


@inner
def step_s(m: Memory, decodes: int, kv: int, prefill: int) -> float:
    """The seconds of a step."""
    rules = m.rules[0]
    seconds: float = (
        rules.base_s
        + rules.per_sequence_s * decodes
        + rules.per_kv_token_s * kv
        + rules.per_prefill_token_s * prefill
    )
    return seconds


@inner
def begin_step(m: Memory, r: int, t: float) -> None:
    """Begin the next step at `t`, if there is anything to do."""
    rules = m.rules[0]
    rep = m.replicas[r]
    rep.step_end = math.inf
    rep.step_prefill = rep.step_background_prefill = rep.step_background = rep.paused = 0
    if rep.background_batch and rep.head != NONE:
        evict_background(m, r, t)
    preemptions = rep.preemptions
    if rep.prefilling or rep.background or rep.kv_used + rep.batch_size > rules.kv_cache_tokens:
        budget = schedule_running(m, r, t)
    else:
        rep.kv_used += rep.batch_size
        budget = rules.max_num_batched_tokens - rep.batch_size
    decodes = rep.batch_size - rep.prefilling - rep.background_batch + rep.background_prefilling
    kv = rep.context
    if rep.background_batch:
        kv -= background_context(m, r)
    if rep.head != NONE and rep.preemptions == preemptions:
        budget = admit(m, r, t, budget, STANDARD)
    if rep.background:
        left_s = rules.background_step_s / rep.slowness - step_s(m, decodes, kv, rep.step_prefill)
        kv += schedule_background(m, r, t, budget, left_s, rep.preemptions == preemptions)
        decodes += rep.step_background
    prefill = rep.step_prefill
    if decodes + prefill == 0:
        return
    took = step_s(m, decodes, kv, prefill) * rep.slowness
    rep.step_began = t
    # A load of an adapter occupies the engine before the step.
    rep.step_end = t + took + rep.load_s
    rep.step_decodes = decodes
    rep.steps += 1
    rep.sum_s += took
    rep.sum_batch += decodes
    rep.sum_prefill += prefill
    rep.sum_kv += kv
    rep.busy_s += took + rep.load_s
    rep.load_s = 0.0
    rep.prefilled += prefill - rep.step_background_prefill
