"""Progress on standard error: a line that is written over on a terminal, plain lines elsewhere."""

from typing import TextIO

_WIDTH = 120


class StatusLine:
    """The state of a measurement, a search or a replay."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rewrites = stream.isatty()
        self._shown = ""

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self.end()
        self._write(f"{text}\n")

    def show(self, text: str, figures: str = "") -> None:
        """Show `text`, and on a terminal the changing figures beside it."""
        if self._rewrites:
            self._write("\r\x1b[K" + "; ".join(filter(None, (text, figures)))[:_WIDTH])
        elif text != self._shown:
            self._write(f"{text}\n")
        self._shown = text

    def end(self) -> None:
        """End the line that is shown; the next output begins a new one."""
        if self._rewrites and self._shown:
            self._write("\n")
        self._shown = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
