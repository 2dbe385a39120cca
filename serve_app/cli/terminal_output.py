"""Emphasis on a terminal, and streams whose reader may go away."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from serve_app import env


@dataclass(frozen=True, slots=True)
class Style:
    """Wraps text in terminal codes if `on`."""

    on: bool = False

    def bold(self, text: str) -> str:
        return self._wrap("1", text)

    def dim(self, text: str) -> str:
        return self._wrap("2", text)

    def warn(self, text: str) -> str:
        return self._wrap("33", text)

    def _wrap(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text


def style_for(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Style:
    """Colours on a terminal, unless `NO_COLOR` is set (https://no-color.org)."""
    return Style(stream.isatty() and not environment.get(env.NO_COLOR))


class LastingStream:
    """Forwards text until its reader (a terminal, `| head`) goes away, which must not end a long run."""

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
        """Discard the buffered text. Writing it at exit would fail again and change the exit status."""
        self.failure = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
