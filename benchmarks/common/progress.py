"""Lines of progress."""

import time

_BEGAN = time.monotonic()


def say(text: str) -> None:
    """Print one line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGAN:6.1f} s] {text}", flush=True)
