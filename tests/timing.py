"""A clock that tests set, and waits for what has no event."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

LIMIT_S = 60.0
"""How long a wait may take, on a busy machine."""


class Clock:
    """Stands in for `time.monotonic` and the like: a test sets `now`, in seconds."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def wait_until(
    look: Callable[[], Any],
    holds: Callable[[Any], object] = bool,
    what: str = "the condition",
    limit_s: float = LIMIT_S,
    every_s: float = 0.02,
) -> Any:
    """Return what `look` finds, once it `holds`. An AssertionError names `what` and what was found."""
    deadline = time.monotonic() + limit_s
    while not holds(found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:g} s, but {found!r}"
        time.sleep(every_s)
    return found


async def until(condition: Callable[[], object], every_s: float = 0.001) -> None:
    """Return once `condition` holds, which is evaluated in the loop's thread."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(every_s)
