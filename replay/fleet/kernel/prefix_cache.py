"""A replica's prefix cache: blocks of prompts, the one used longest ago evicted first."""

from __future__ import annotations

from replay.fleet.kernel.compiler import inner
from replay.fleet.layout import NONE, Memory


@inner
def place_of(m: Memory, r: int, block: int) -> int:
    """The index of a block in a replica's prefix cache; NONE if it is not there."""
    place: int = m.replicas[r].cached_blocks - 1
    while place >= 0 and m.cache[r, place] != block:
        place -= 1
    return place


@inner
def use(m: Memory, r: int, block: int) -> None:
    """Make a block the one of a replica's prefix cache that was used last."""
    rep = m.replicas[r]
    place = place_of(m, r, block)
    if place == NONE:
        # Where the cache is full the place of the block used first becomes free.
        place = 0
        if rep.cached_blocks < m.cache.shape[1]:
            place = rep.cached_blocks
            rep.cached_blocks += 1
    for i in range(place, rep.cached_blocks - 1):
        m.cache[r, i] = m.cache[r, i + 1]
    m.cache[r, rep.cached_blocks - 1] = block


@inner
def cached_tokens(m: Memory, r: int, q: int) -> int:
    """The number of prompt tokens found in the prefix cache; afterwards it holds all the prompt's blocks."""
    request = m.requests[q]
    hits = 0
    while hits < request.blocks and place_of(m, r, m.blocks[q, hits]) != NONE:
        use(m, r, m.blocks[q, hits])
        hits += 1
    # The first block last: without it the others are of no use, so a prompt's end is evicted before it.
    for i in range(request.blocks - 1, -1, -1):
        use(m, r, m.blocks[q, i])
    # The last token is always computed: its logits are the first output token's.
    tokens: int = min(hits * m.rules[0].block_tokens, request.prompt - 1)
    return tokens
