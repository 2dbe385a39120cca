"""The texts that documents are made of, seeded choices among them, and small helpers of grammar."""

from collections.abc import Sequence
from importlib import resources
from random import Random
from typing import Any

from serve_app.settings.document import parse_yaml


def texts(name: str) -> dict[str, Any]:
    """Return the texts of a file in `texts/`."""
    file = resources.files(__package__) / "texts" / f"{name}.yaml"
    found: dict[str, Any] = parse_yaml(file.read_text(encoding="utf-8"), file.name).value
    return found


CAST = texts("cast")
KINDS, TRAITS, FEELINGS, OBJECTS, HEROES, HELPERS = (
    CAST[name].split() for name in ("kinds", "traits", "feelings", "objects", "heroes", "helpers")
)
NAMES = [*HEROES, *HELPERS, *CAST["others"].split()]
"""Helpers' names are never heroes' names, so that a reader can tell the two apart at once."""
PLACES = tuple(CAST["places"].values())
CITIES: list[str] = CAST["cities"]
CAPITALS: dict[str, str] = CAST["capitals"]
ANSWERS: list[tuple[str, str]] = list(CAST["answers"].items())
"""Questions with a known answer."""
LISTS = {name: items.split(", ") for name, items in CAST["lists"].items()}
_SYLLABLES = CAST["syllables"].split()


def nonsense(rng: Random) -> str:
    """Return a made-up word."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 3)))


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def article(noun: str) -> str:
    """Return the noun phrase with "a" or "an" in front."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def listed(items: Sequence[str]) -> str:
    """Join items as a sentence does: "one, two and three"."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def chance(rng: Random, probability: float) -> bool:
    """Return true with the given probability."""
    return rng.random() < probability


def some(rng: Random, items: Sequence[str], low: int, high: int) -> list[str]:
    """Return between `low` and `high` different items in random order."""
    return rng.sample(items, min(len(items), rng.randint(low, high)))


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
