"""The tables of load tests on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

WIDE = 100
"""Columns that every table fits in; on a narrower terminal they leave some out."""


def default_console() -> Console:
    """Standard output; a file or a pipe is as wide as the tables are."""
    console = Console()
    return console if console.is_terminal else Console(width=max(WIDE, console.width))


def section(title: str, *columns: str, width: int = 20) -> Table:
    """A table with a title over its first column, of at least `width`, and figures in the others."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(title, min_width=width, header_style="bold", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", header_style="dim", no_wrap=True)
    return table
