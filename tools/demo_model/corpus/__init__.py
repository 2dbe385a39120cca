"""The corpus: an endless, seeded stream of documents from our own generator."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tools.demo_model.corpus.mixture import document


def documents(seed: int) -> Iterator[str]:
    """Yield documents for ever; the same seed always yields the same documents."""
    rng = Random(seed)
    while True:
        yield document(rng)
