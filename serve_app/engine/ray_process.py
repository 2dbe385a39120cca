"""Exceptions of vLLM, for other processes of Ray Serve."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("ray.serve")


@contextmanager
def raise_as_runtime_errors() -> Iterator[None]:
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
