"""SIGTERM and a hang-up end a benchmark as Ctrl-C does, with everything it has started."""

import signal
from types import FrameType

from benchmarks.common.progress import say
from serve_app.processes import adopt_orphans


def end_on_signals() -> None:
    """Make SIGTERM and a hang-up raise KeyboardInterrupt, and adopt orphans.

    `stop_descendants` then reaches every process, also the server of a supervisor that was killed.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    for which in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(which, _interrupt)
    adopt_orphans()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Stop as on Ctrl-C, which asyncio turns into a cancellation of its tasks."""
    say(f"received {signal.Signals(number).name}")
    signal.raise_signal(signal.SIGINT)
