"""What is wrong with a trace, and where."""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN = 80  # characters of an offending value worth repeating


class TraceError(ValueError):
    """A trace that cannot be replayed. Names the file and, where there is one, line, key, value and bound."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, counted from 1."""

    file: str
    line: int

    def error(self, what: str) -> TraceError:
        """The error that `what` is at this place."""
        return TraceError(f"{self.file}, line {self.line}: {what}")


def shown(value: object) -> str:
    """A value as it stands in the file, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
