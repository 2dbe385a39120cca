"""What the policy decided, and everything that led to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

_AGES_KEPT = 20
"""Of a record: the oldest reports. A thousand replicas' would be 30 KB, five hundred times."""

Clamped = Literal["bounds", "delay", "signals", "hold", "capacity", "mode"]


@dataclass(frozen=True, slots=True)
class Term:
    """One consideration: the replicas it asks for by itself, and why, with its numbers."""

    name: str
    replicas: int
    why: str


@dataclass(frozen=True, slots=True)
class Clamp:
    """Something that kept the target from what the terms asked for, and how."""

    name: Clamped
    effect: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a decision is what it is. Built from numbers the decision has used, never guessed after it."""

    terms: tuple[Term, ...]
    binding: str
    """Name of the term that asked for the most, or of the clamp that set the target."""
    clamps: tuple[Clamp, ...]
    reason: str
    counterfactual: str
    notes: tuple[str, ...]
    signals: Mapping[str, float]
    """Sums over the fresh reports, and what was derived from them."""
    ages_s: Mapping[str, float]
    """Age of every replica's report."""


@dataclass(frozen=True, slots=True)
class Record:
    """A decision as it is kept, served and logged."""

    seq: int
    at: float
    deployment: str
    model: str
    kind: Literal["change", "heartbeat", "error"]
    mode: str
    old_target: int
    new_target: int
    wanted: int
    ready: int
    binding: str
    reason: str
    counterfactual: str
    terms: tuple[Term, ...] = ()
    clamps: tuple[Clamp, ...] = ()
    signals: Mapping[str, float] = field(default_factory=dict)
    ages_s: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As plain data, numbers rounded to what a reader can use."""
        plain = asdict(self)
        plain["signals"] = {name: _short(value) for name, value in self.signals.items()}
        oldest = sorted(self.ages_s.items(), key=lambda item: -item[1])[:_AGES_KEPT]
        plain["ages_s"] = {name: _short(value) for name, value in oldest}
        return plain


def _short(value: float) -> float:
    return float(f"{value:.4g}")
