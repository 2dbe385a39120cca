"""Where requests go, and what their prompts are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A server that speaks the OpenAI API, and the vocabulary of its model."""

    url: str
    """Without the path `/v1/...`."""
    headers: Mapping[str, str]
    """Sent with every request, `Authorization` for instance."""
    model: str
    """For requests that name none."""
    token_ids: tuple[int, ...]
    """What prompts of the completions API are drawn from: no special tokens."""
    words: tuple[str, ...]
    """What those of the chat API are drawn from."""
    tokens_per_word: float
    """About so many tokens each."""
    seed: int
