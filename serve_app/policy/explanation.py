"""What the policy decided, and everything that led to it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

_AGES_KEPT = 20
"""Reports whose age a record keeps, the oldest. The ages of a thousand replicas are 30 KB in each record."""

ClampName = Literal["bounds", "delay", "signals", "batch_limit", "mode"]


@dataclass(frozen=True, slots=True)
class Term:
    """One consideration: how many replicas it needs by itself, and why, with its numbers."""

    name: str
    replicas: int
    why: str


@dataclass(frozen=True, slots=True)
class Clamp:
    """Something that kept the target from what the terms need, and how."""

    name: ClampName
    effect: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a decision is what it is, built from the numbers that the decision used."""

    binding: str
    """The name of the term that needs the most replicas, or of the clamp that set the target."""
    reason: str
    counterfactual: str
    terms: tuple[Term, ...] = ()
    clamps: tuple[Clamp, ...] = ()
    signals: Mapping[str, float] = field(default_factory=dict)
    """Sums over the fresh reports, and what was derived from them."""
    ages_s: Mapping[str, float] = field(default_factory=dict)
    """The age of every replica's report."""
    notes: tuple[str, ...] = ()


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
    explanation: Explanation

    def document(self) -> dict[str, Any]:
        """Return the record as flat plain data, with numbers rounded to what a reader can use."""
        plain: dict[str, Any] = asdict(self)
        explanation: dict[str, Any] = plain.pop("explanation")
        oldest = sorted(explanation["ages_s"].items(), key=lambda item: -item[1])[:_AGES_KEPT]
        rounded = {"signals": _rounded(explanation["signals"]), "ages_s": _rounded(dict(oldest))}
        return plain | explanation | rounded


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def counted(number: float, noun: str) -> str:
    """Return `number` with its noun: "no replica", "1 replica", "3,000 replicas"."""
    whole = f"{number:,.0f}"
    return {"0": f"no {noun}", "1": f"1 {noun}"}.get(whole, f"{whole} {noun}s")


def are(number: float, noun: str) -> str:
    """Return `number` with its noun and verb: "no replica is", "1 replica is", "3 replicas are"."""
    words = counted(number, noun)
    return f"{words} {'are' if words.endswith('s') else 'is'}"


def amount(number: float, digits: int = 3) -> str:
    """Return `number` with so many significant digits, and all those before its point: "0.62", "24,300"."""
    rounded = round(number) if abs(number) >= 10**digits else float(f"{number:.{digits}g}")
    return f"{rounded:,.15g}"
