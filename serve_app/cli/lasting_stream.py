"""A stream whose reader may go away: a terminal that is closed, or `| head`."""

from __future__ import annotations

import os
from typing import Any, TextIO


class LastingStream:
    """Passes text on until its reader goes away. A run of hours must not end because of that."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None
        """The error after which nothing more was written, or None."""

    def write(self, text: str) -> int:
        """Write if there still is a reader. Returns the length of `text`."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flush if there still is a reader."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Discard what is still buffered: writing it at exit would fail again and change the exit status."""
        self.failure = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
