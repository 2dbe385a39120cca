"""Prefix blocks: in the caches of replicas, and as the ingress knows them. The longest unused is evicted."""

from replay.fleet.kernel.compiler import inner
from replay.fleet.layout import NONE, Ints, Memory


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
        # Of a full list the block used longest ago is evicted.
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
    """The number of prompt tokens found in the prefix cache; afterwards it holds all the prompt's blocks."""
    rep = m.replicas[r]
    request = m.requests[q]
    hits = 0
    while hits < request.blocks and index_of(m.cache, r, rep.cached_blocks, m.blocks[q, hits]) != NONE:
        rep.cached_blocks = use(m.cache, r, rep.cached_blocks, m.blocks[q, hits])
        hits += 1
    # The first block last: without it the others are of no use, so a prompt's end is evicted before it.
    for i in range(request.blocks - 1, -1, -1):
        rep.cached_blocks = use(m.cache, r, rep.cached_blocks, m.blocks[q, i])
    # The last token is always computed: its logits are the first output token's.
    tokens: int = min(hits * m.rules[0].block_tokens, request.prompt - 1)
    m.totals[0].cached += tokens
    return tokens


@inner
def expected_tokens(m: Memory, r: int, q: int) -> int:
    """The prompt tokens that the ingress expects a replica to hold."""
    rep = m.replicas[r]
    request = m.requests[q]
    hits = 0
    while hits < request.blocks and index_of(m.indexed, r, rep.indexed_blocks, m.blocks[q, hits]) != NONE:
        hits += 1
    tokens: int = min(hits * m.rules[0].block_tokens, request.prompt)
    return tokens


@inner
def note_sent(m: Memory, r: int, q: int) -> None:
    """Note that a replica will hold all of a prompt."""
    rep = m.replicas[r]
    for i in range(m.requests[q].blocks - 1, -1, -1):
        rep.indexed_blocks = use(m.indexed, r, rep.indexed_blocks, m.blocks[q, i])
