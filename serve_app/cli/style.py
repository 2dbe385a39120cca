"""Emphasis on a terminal, and nothing anywhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from serve_app import env


@dataclass(frozen=True, slots=True)
class Style:
    """Wraps text in terminal codes if `on`."""

    on: bool = False

    def bold(self, text: str) -> str:
        """Headings."""
        return self._wrap("1", text)

    def dim(self, text: str) -> str:
        """What is read last."""
        return self._wrap("2", text)

    def warn(self, text: str) -> str:
        """What needs attention."""
        return self._wrap("33", text)

    def _wrap(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text


def style_for(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Style:
    """Colours on a terminal, unless `NO_COLOR` is set (https://no-color.org)."""
    return Style(stream.isatty() and not environment.get(env.NO_COLOR))
