"""How a stage of the proof, or the proof itself, can end."""

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["done", "cannot", "failed"]


class RefusedError(Exception):
    """The proof cannot begin, or go on: one sentence for the user for each reason."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class CannotError(Exception):
    """A stage cannot be measured on this machine; the message says why."""


class NeedError(Exception):
    """A stage needs the figures of another one, which are still to be measured."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a stage ended."""

    stage: str
    state: State
    why: str
    """Why it could not be measured or failed; empty if it is done."""
    began: str
    """UTC, ISO 8601."""
    took_s: float
    figures: dict[str, Any]
