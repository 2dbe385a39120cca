"""Keeps the garbage collector from stalling a client."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 10_000
"""Objects that may come before the young are looked at: in some 0.3 ms."""


@contextmanager
def short_collections() -> Iterator[None]:
    """Set aside all that exists, so that collections look only at what came since.

    That is modules and the plan, hundreds of thousands of objects; what comes since are the requests that
    are open, and in a client process nothing else, because records leave it at once. A collection is
    needed all the same: exceptions and tasks form cycles.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
