"""A stage of the proof, and how it can end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from benchmarks.gpu_proof.bench import Bench

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
class Stage:
    """One part of the proof."""

    name: str
    title: str
    measure: Callable[["Bench"], dict[str, Any]]
    """Returns figures as plain data, with times in seconds and rates per second.

    Raises:
        CannotError: where the machine or the model lacks what the stage is about.
    """
    needs: tuple[str, ...] = ()
    """Stages whose figures it reads."""


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
