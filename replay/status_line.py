"""Progress on standard error: a bar or a line that is written over on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from replay.result import Result

_NAME_WIDTH = 18
_WIDTH = 120


class ProgressBar:
    """The progress of replays, one after the other."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, soft_wrap=True)

    def say(self, text: str) -> None:
        """Write a line."""
        self._console.print(Text(text), highlight=False)

    @contextmanager
    def running(self, policy: str) -> Iterator[Callable[[float], None]]:
        """Show a bar while `policy` runs. Yields the function to call with the share that is done."""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        disabled = not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=disabled) as progress:
            task = progress.add_task(policy.replace("[", r"\["), total=1.0)
            yield lambda share: progress.update(task, completed=share)

    def say_result(self, result: Result, took_s: float) -> None:
        """Write the line of a replay that has ended."""
        self.say(
            f"{result.policy:<{_NAME_WIDTH}} {result.gpu_seconds.total:>10,.0f} GPU-s, "
            f"{100 * result.attainment:6.2f} % attained, in {took_s:.1f} s"
        )


class StatusLine:
    """The state of a measurement or a search."""

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
