"""What an engine replica raises where Ray carries it to another process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("ray.serve")


@contextmanager
def told_as_runtime_errors() -> Iterator[None]:
    """Raise any exception of the block as a RuntimeError that names its type.

    Whoever receives an exception from another process imports its class, and the package of that class: one
    of vLLM's cost Ray Serve's controller 400 MB for torch, and stopped its event loop for 15 s.
    """
    try:
        yield
    except RuntimeError as error:
        if type(error) is RuntimeError:
            raise
        raise _plain(error) from None
    except Exception as error:
        raise _plain(error) from None


def _plain(error: Exception) -> RuntimeError:
    # The traceback stays here: it is of no use to the receiver without the source.
    logger.error("%s: %s", type(error).__name__, error, exc_info=error)
    return RuntimeError(f"{type(error).__name__}: {error}")
