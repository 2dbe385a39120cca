"""A stream to a reader that may go away: a terminal that is closed, `| head`."""

from __future__ import annotations

import os
from typing import Any, TextIO


class LastingStream:
    """Passes text on while somebody reads it. A run of hours must not end because nobody looks any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None
        """Why nothing is written any more."""

    def write(self, text: str) -> int:
        """Write, if that is still of use; `text`'s length."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flush, if that is still of use."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Have what is still buffered go nowhere, or it would fail again at exit and change the status."""
        self.failure = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
