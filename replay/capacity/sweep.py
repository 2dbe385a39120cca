"""The loads to measure under. Pure.

The four coefficients of a step are told apart by loads that differ in the batch, in the KV tokens at the
same batch, and in the prefill tokens a step; so prompt lengths and concurrencies are crossed, and some
cells do little but prefill.
"""

import math
import random
from dataclasses import dataclass

MOST_SEQUENCES = 64
"""Concurrency beyond which this client would be measured rather than the engine."""
SHORT_PROMPT = 32
_LONG_PROMPT = 4096
_DECODING = 128
"""Tokens of an answer where decoding is to be seen."""
_PREFILLING = 4
# Cells fill at most this share of the KV cache: a preempted sequence is prefilled twice.
_KV_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the server."""

    max_model_len: int
    """Tokens of a prompt and its answer."""
    kv_cache_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One load: `concurrency` streams, each sending its next request when its last is answered."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int

    def __str__(self) -> str:
        streams = "stream" if self.concurrency == 1 else "streams"
        return f"{self.concurrency} {streams} of {self.prompt_tokens} + {self.output_tokens} tokens"


def plan(limits: Limits, seed: int) -> tuple[Cell, ...]:
    """The cells, in an order drawn by `seed`, so that a drift of the machine is no trend of the load.

    Raises ValueError for a context or a cache too small to tell prompts apart.
    """
    room = min(limits.max_model_len, limits.kv_cache_tokens)
    answer = min(_DECODING, room // 4)
    longest = min(_LONG_PROMPT, room - answer)
    if longest < 2 * SHORT_PROMPT:
        raise ValueError(
            f"max_model_len = {limits.max_model_len} and {limits.kv_cache_tokens} tokens of KV cache: "
            f"prompts of {2 * SHORT_PROMPT} tokens and their answers must fit"
        )
    middle = round(math.sqrt(SHORT_PROMPT * longest))
    most = min(limits.max_num_seqs, MOST_SEQUENCES)
    few = max(2, round(math.sqrt(most)))
    cells = [
        _fitting(limits, Cell(prompt, answer, streams))
        for prompt in (SHORT_PROMPT, middle, longest)
        for streams in (1, min(few, most), most)
    ]
    cells += [
        _fitting(limits, Cell(prompt, _PREFILLING, streams))
        for prompt, streams in ((middle, min(few, most)), (longest, 1), (longest, min(few, most)))
    ]
    unique = list(dict.fromkeys(cells))
    random.Random(seed).shuffle(unique)  # noqa: S311 - an order, not a secret
    return tuple(unique)


def _fitting(limits: Limits, cell: Cell) -> Cell:
    """The cell with as many streams as the KV cache holds."""
    most = int(_KV_SHARE * limits.kv_cache_tokens / (cell.prompt_tokens + cell.output_tokens))
    return Cell(cell.prompt_tokens, cell.output_tokens, max(1, min(cell.concurrency, most)))


class Prompts:
    """Prompts of exact lengths, drawn from token ids of the model's own vocabulary.

    Random from the first token on, so that no two share a block of the prefix cache.
    """

    def __init__(self, token_ids: list[int], seed: int) -> None:
        self.token_ids = tuple(sorted(set(token_ids)))
        """Each once."""
        self._random = random.Random(seed)  # noqa: S311 - repeatable load, not a secret

    def draw(self, length: int) -> list[int]:
        """A prompt of `length` tokens."""
        return self._random.choices(self.token_ids, k=length)
