"""A benchmark that a signal ends is ended as by Ctrl-C, with everything it has started."""

import signal
from types import FrameType

from benchmarks.common.progress import say
from serve_app.cli.ray_processes import adopt_orphans


def end_on_signals() -> None:
    """Have SIGTERM and a hang-up raise KeyboardInterrupt too, and orphans come back to this process.

    `stop_descendants` then reaches all of them, also the server of a supervisor that was killed.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    for which in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(which, _interrupt)
    adopt_orphans()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Stop as on Ctrl-C, which asyncio knows how to pass on to what is running."""
    say(f"received {signal.Signals(number).name}")
    signal.raise_signal(signal.SIGINT)
