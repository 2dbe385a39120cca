"""Keep this process's log handlers open while vLLM sets up its own logging."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def log_handlers_kept() -> Iterator[None]:
    """Within the block, `logging.config.dictConfig` closes no handler that was there before it.

    vLLM calls `dictConfig` when it is imported, and that closes every handler of the process. Ray Serve's,
    closed, has lost the file it writes to: the replica's log ends there, later lines pile up in memory, and a
    controller that was restarted stops the replica, because the path of that file is part of what it asks a
    replica for. `dictConfig` finds handlers in the list that `logging` keeps for its shutdown, so they are
    taken out of that list meanwhile.
    """
    registered: list[Any] = logging._handlerList  # type: ignore[attr-defined]
    kept = registered[:]
    registered.clear()
    try:
        yield
    finally:
        registered[:0] = kept
