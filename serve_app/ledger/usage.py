"""The ledger's unit of account: who used which model in which lane, and how much."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

State = Literal["used", "idle", "starting", "draining"]
"""What a GPU did. `used`: it had requests, whose account pays. The other states belong to no request."""
UNUSED: tuple[State, ...] = tuple(state for state in get_args(State) if state != "used")
BUCKET_S = 60
"""Amounts are summed by the minute."""
UNWRITTEN_SINCE = "X-Tideserve-Unwritten-Since"
"""The header of an answer to `GET /usage` that has old figures: since when no usage could be stored."""
QUERIES = 4
"""The most queries of one process at the same time."""


By = Literal["key", "lane", "model", "variant"]
"""What usage is summed by."""


def of_variant(model: str, variant: str) -> str:
    """Return the name of a variant in accounts. No name of a model has a space."""
    return f"{model} ({variant})"


class Account(NamedTuple):
    """The payer of an amount."""

    model: str
    """With its variant if it has variants: `of_variant`."""
    key: str = ""
    """The name of the API key; "" without keys, and for GPU time that no request used."""
    lane: str = ""
    """The lane; "" for GPU time that no request used."""
    state: State = "used"
    budgets: tuple[str, ...] = ()
    """The names of the budgets that pay. The ledger's rows have no budgets."""


@dataclass(slots=True)
class Amounts:
    """What an account used. Tokens are those of OpenAI's `usage`."""

    requests: int = 0
    """Requests whose answer began."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """The part of `prompt_tokens` found in the prefix cache."""
    completion_tokens: int = 0
    gpu_seconds: float = 0.0
    cost: float = 0.0
    """Money, at the price in force when the GPU time was spent."""

    def add(self, other: Amounts) -> None:
        for name in AMOUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __bool__(self) -> bool:
        return self != _NOTHING


_NOTHING = Amounts()
AMOUNTS = tuple(field.name for field in fields(Amounts))
