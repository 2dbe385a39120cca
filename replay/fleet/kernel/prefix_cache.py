"""A replica's prefix cache: blocks of prompts, the one used longest ago evicted first."""

from __future__ import annotations

from replay.fleet.kernel.compiler import inner
from replay.fleet.layout import NONE, Memory


@inner
def index_of(m: Memory, r: int, block: int) -> int:
    """The index of a block in a replica's prefix cache; NONE if it is not there."""
    index: int = m.replicas[r].cached_blocks - 1
    while index >= 0 and m.cache[r, index] != block:
        index -= 1
    return index


@inner
def use(m: Memory, r: int, block: int) -> None:
    """Make a block the one of a replica's prefix cache that was used last."""
    rep = m.replicas[r]
    index = index_of(m, r, block)
    if index == NONE:
        # In a full cache the block used longest ago is evicted.
        index = 0
        if rep.cached_blocks < m.cache.shape[1]:
            index = rep.cached_blocks
            rep.cached_blocks += 1
    for i in range(index, rep.cached_blocks - 1):
        m.cache[r, i] = m.cache[r, i + 1]
    m.cache[r, rep.cached_blocks - 1] = block


@inner
def cached_tokens(m: Memory, r: int, q: int) -> int:
    """The number of prompt tokens found in the prefix cache; afterwards it holds all the prompt's blocks."""
    request = m.requests[q]
    hits = 0
    while hits < request.blocks and index_of(m, r, m.blocks[q, hits]) != NONE:
        use(m, r, m.blocks[q, hits])
        hits += 1
    # The first block last: without it the others are of no use, so a prompt's end is evicted before it.
    for i in range(request.blocks - 1, -1, -1):
        use(m, r, m.blocks[q, i])
    # The last token is always computed: its logits are the first output token's.
    tokens: int = min(hits * m.rules[0].block_tokens, request.prompt - 1)
    return tokens
