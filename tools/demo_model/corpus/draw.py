"""Seeded choices, and the small grammar helpers that texts share."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def article(noun: str) -> str:
    """Return the noun phrase with "a" or "an" in front."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def listed(items: Sequence[str], last: str = "and") -> str:
    """Join items as a sentence does: "one, two and three"."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def chance(rng: Random, probability: float) -> bool:
    """Return true with the given probability."""
    return rng.random() < probability


def some(rng: Random, items: Sequence[str], low: int, high: int) -> list[str]:
    """Return between `low` and `high` different items in random order."""
    return rng.sample(items, min(len(items), rng.randint(low, high)))


def lines(block: str) -> list[str]:
    """Return the non-empty lines of a text block."""
    return [line.strip() for line in block.strip().splitlines() if line.strip()]


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


def casual(rng: Random, question: str) -> str:
    """Return the question as a hurried person types it: case and punctuation may be missing."""
    roll = rng.random()
    if roll < 0.12:
        return question.lower()
    if roll < 0.24:
        return question.rstrip("?.!")
    if roll < 0.30:
        return question.lower().rstrip("?.!")
    return question
