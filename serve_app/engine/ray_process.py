"""What a process of Ray Serve must be spared of vLLM: closed log handlers, and exceptions of its classes."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger("ray.serve")


@contextmanager
def log_handlers_kept() -> Iterator[None]:
    """Within the block, `logging.config.dictConfig` closes no handler that was there before it.

    vLLM calls `dictConfig` when it is imported, and that closes every handler of the process. Ray Serve's
    then has no file to write to any more: the replica's log ends there, later lines pile up in memory, and
    a controller that was restarted stops the replica, because the path of that file is part of what it
    asks a replica for. `dictConfig` finds handlers in the list that `logging` keeps for its shutdown, so they
    are taken out of that list meanwhile.
    """
    registered: list[Any] = logging._handlerList  # type: ignore[attr-defined]
    kept = registered[:]
    registered.clear()
    try:
        yield
    finally:
        registered[:0] = kept


@contextmanager
def told_as_runtime_errors() -> Iterator[None]:
    """Raise any exception of the block as a RuntimeError that names its type.

    A process that receives an exception from another one imports its class, and the package of that class:
    one of vLLM's cost Ray Serve's controller 400 MB for torch, and stopped its event loop for 15 s.
    """
    try:
        yield
    except Exception as error:
        if type(error) is RuntimeError:
            raise
        # The traceback is logged here: without the source it is of no use to the receiver.
        logger.error("%s: %s", type(error).__name__, error, exc_info=error)
        raise RuntimeError(f"{type(error).__name__}: {error}") from None
