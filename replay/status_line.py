"""Progress as one line: written over on a terminal, and elsewhere a line for each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from replay.result import Result

_NAME_WIDTH = 18


class ProgressBar:
    """Writes to one stream, which is not that of the results."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.perf_counter) -> None:
        self._console = Console(file=stream, soft_wrap=True)
        self._clock = clock

    def say(self, what: str) -> None:
        """A line."""
        self._console.print(Text(what), highlight=False)

    @contextmanager
    def running(self, policy: str) -> Iterator[Callable[[float], None]]:
        """While `policy` runs: what to tell the share that is done. No bar where there is no terminal."""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        disabled = not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=disabled) as progress:
            task = progress.add_task(policy.replace("[", r"\["), total=1.0)
            yield lambda share: progress.update(task, completed=share)

    def ended(self, result: Result, took_s: float) -> None:
        """The line of a run."""
        self.say(
            f"{result.policy:<{_NAME_WIDTH}} {result.gpu_seconds.total:>10,.0f} GPU-s, "
            f"{100 * result.attainment:6.2f} % attained, in {took_s:.1f} s"
        )


_WIDTH = 120


class StatusLine:
    """Writes to one stream, which is not that of the results."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rewrites = stream.isatty()
        self._shown = ""

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self.end()
        self._write(f"{text}\n")

    def show(self, text: str, figures: str = "") -> None:
        """Show `text`, and on a terminal the figures that change beside it."""
        if self._rewrites:
            self._write("\r\x1b[K" + "; ".join(filter(None, (text, figures)))[:_WIDTH])
        elif text != self._shown:
            self._write(f"{text}\n")
        self._shown = text

    def end(self) -> None:
        """Leave the line as it is; what follows begins a new one."""
        if self._rewrites and self._shown:
            self._write("\n")
        self._shown = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
