"""The corpus: an endless, seeded stream of documents from our own generator."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from serve_app.models.training.corpus.mixture import document


def documents(seed: int) -> Iterator[str]:
    """Yield documents for ever; the same seed always yields the same documents."""
    rng = Random(seed)  # noqa: S311
    while True:
        yield document(rng)
