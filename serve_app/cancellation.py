"""Tell a task's own cancellation from one that a call inside it brings back."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


def is_cancelled() -> bool:
    """Whether somebody has asked for the end of the present task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextmanager
def only_own_cancellation() -> Iterator[None]:
    """Turn the cancellation of a call inside into a ConnectionError, as Ray raises it for a lost replica.

    `except Exception` would not see it, and the task would end as if somebody had asked for that.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise ConnectionError("the call was cancelled at its other end") from error
