"""What ends a run early."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_on_signals(stopping: asyncio.Event) -> Iterator[None]:
    """Set `stopping` at the first SIGINT, SIGTERM or hang-up; a second SIGINT is Python's own again.

    Under `nohup` hang-ups stay ignored. For the main thread's running loop.
    """
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        stopping.set()
        loop.remove_signal_handler(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
