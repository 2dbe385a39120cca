"""How long an engine step takes, by the law that the conditions name."""

from replay.fleet.kernel.compiler import inner
from replay.fleet.layout import Memory

WEIGHTS_SHARE = 0.87
"""Share of a step's base in which the GPU reads the weights: of the 11.5 ms of an A100 with a 7B model, 10 ms
are 16.06 GB at 79 % of 2.039 TB/s. The rest is launches."""
USUAL_BATCH = 16.0
"""Sequences at which both laws cost a sequence the same."""
SQUARE_SHARE = 0.25
"""Share of that cost which grows with the batch."""


@inner
def step_s(m: Memory, decodes: int, kv: int, prefill: int) -> float:
    """The seconds of a step of `decodes` sequences with `kv` cached tokens, and of `prefill` prompt tokens.

    Linear, as the policy's own model has it: every token of every kind adds its seconds.

    Roofline (Williams, Waterman and Patterson, 2009): launches + max(memory, compute) + sequences. A GPU
    reads the weights and the KV cache while it multiplies, so only the longer of the two takes time. The
    first 200 prompt tokens of a step on an A100 are free behind the weights, and a long prompt hides the
    reading of the cache. Every token, of a prompt or an answer, is multiplied by the same weights. Sequences
    cost more in a large batch, where all wait for the longest context in it: a quarter of their cost at
    sixteen grows with the square. With sixteen sequences and no prompt both laws take equally long, whatever
    is cached; a prompt alone never takes longer than by the linear one.
    """
    rules = m.rules[0]
    took: float
    if rules.roofline:
        memory = WEIGHTS_SHARE * rules.base_s + rules.per_kv_token_s * kv
        compute = rules.per_prefill_token_s * (prefill + decodes)
        crowd = 1.0 - SQUARE_SHARE + SQUARE_SHARE * decodes / USUAL_BATCH
        launches = (1.0 - WEIGHTS_SHARE) * rules.base_s
        took = launches + max(memory, compute) + rules.per_sequence_s * decodes * crowd
    else:
        took = (
            rules.base_s
            + rules.per_sequence_s * decodes
            + rules.per_kv_token_s * kv
            + rules.per_prefill_token_s * prefill
        )
    return took
