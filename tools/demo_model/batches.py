"""Packs documents into rows of tokens, each row starting where a document starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from tokenizers import Tokenizer

from tools.demo_model.tokenizer import END_OF_TEXT, token_id

_ENCODE_BLOCK = 512


def rows(texts: Iterable[str], tokenizer: Tokenizer, length: int) -> Iterator[list[int]]:
    """Yield rows of `length` tokens; a row's last document is cut where the row is full."""
    end = token_id(tokenizer, END_OF_TEXT)
    stream = iter(texts)
    row: list[int] = []
    while block := list(islice(stream, _ENCODE_BLOCK)):
        for encoding in tokenizer.encode_batch_fast(block):
            row.extend(encoding.ids)
            row.append(end)
            if len(row) >= length:
                yield row[:length]
                row = []


def batches(
    texts: Iterable[str], tokenizer: Tokenizer, length: int, tokens_per_batch: int
) -> Iterator[torch.Tensor]:
    """Yield batches of shape (rows, length) that hold `tokens_per_batch` tokens each."""
    stream = rows(texts, tokenizer, length)
    while block := list(islice(stream, tokens_per_batch // length)):
        yield torch.tensor(block, dtype=torch.long)
