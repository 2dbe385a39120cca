"""The terminal output of `tideserve ask`: the answer on one stream, the progress on another."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from serve_app.cli.formats import plain
from serve_app.cli.terminal_output import Style, style_for

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which a model may generate. Tabs and line ends are text."""
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one event, part of the answer or of the reasoning before it."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """A comment in the stream of a queued request (`ColdWait.comment`). Times in seconds."""

    phase: str
    eta_s: int | None
    waited_s: int


class Display:
    """Writes the answer to `out` as it comes, and progress to `err`. Without `out` the answer is not shown.

    A terminal shows the wait in one line that is rewritten. Otherwise each phase of the wait is a line.
    """

    def __init__(self, out: TextIO | None, err: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._err = err
        self._clock = clock
        self._rewrites = err.isatty()
        self._style = style_for(out) if out is not None else Style()
        self._is_terminal = out is not None and out.isatty()
        self._began: float | None = None
        self._wait: tuple[float, Wait] | None = None
        self._phase = ""
        self._wait_line_open = False
        self._open_line = False
        self._reasoned = False

    def begin(self, model: str) -> None:
        self._began = self._clock()
        if self._rewrites:
            self.tick()
        else:
            self.write_line(f"asking {model}")

    def show_wait(self, wait: Wait) -> None:
        self._wait = self._clock(), wait
        if self._rewrites:
            self.tick()
        elif wait.phase != self._phase:
            self.write_line(self._wait_text(wait, 0.0))
        self._phase = wait.phase

    def tick(self) -> None:
        """Show the seconds that have passed. Call it once a second."""
        if self._began is None or not self._rewrites:
            return
        now = self._clock()
        if self._wait is None:
            words = f"waiting for the first token, {now - self._began:.0f} s"
        else:
            came_at, wait = self._wait
            words = self._wait_text(wait, now - came_at)
        self._err.write(f"\r\x1b[K{words}")
        self._err.flush()
        self._wait_line_open = True

    def write_piece(self, piece: Piece) -> None:
        """Write text of the answer. This ends the wait."""
        self._began = None
        self._clear()
        if self._out is None or not piece.text:
            return
        text = _CONTROLS.sub("", piece.text) if self._is_terminal else piece.text
        if self._reasoned and not piece.reasoning:
            self._write("\n\n")
        self._reasoned = piece.reasoning
        self._write(self._style.dim(text) if piece.reasoning else text)
        self._open_line = not text.endswith("\n")

    def end(self) -> None:
        """End the line that is open on each stream."""
        self._began = None
        self._clear()
        if self._open_line:
            self._write("\n")
            self._open_line = False

    def write_line(self, words: str) -> None:
        self._clear()
        self._err.write(f"{plain(words, _LONGEST)}\n")
        self._err.flush()

    def _write(self, text: str) -> None:
        assert self._out is not None
        encoding = self._out.encoding or "utf-8"
        # The text may have half a surrogate pair, or a letter that the terminal's encoding lacks.
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()

    def _clear(self) -> None:
        if self._wait_line_open:
            self._err.write("\r\x1b[K")
            self._err.flush()
            self._wait_line_open = False

    def _wait_text(self, wait: Wait, since_s: float) -> str:
        parts = [f"waiting for a replica: {plain(wait.phase)}"]
        if wait.eta_s is not None:
            left = wait.eta_s - since_s
            parts.append(f"about {left:.0f} s to go" if left >= 1 else "any moment now")
        parts.append(f"{wait.waited_s + since_s:.0f} s so far")
        return ", ".join(parts)
