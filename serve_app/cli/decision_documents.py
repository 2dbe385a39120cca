"""The answer of `GET /autoscaling/decisions`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Document(BaseModel):
    """Ignores fields that a newer server adds."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class TermDocument(_Document):
    """One consideration: the replicas it needs by itself, and why."""

    name: str
    replicas: int
    why: str = ""


class ClampDocument(_Document):
    """Something that kept the target from what the terms need."""

    name: str
    effect: str = ""


class RecordDocument(_Document):
    """One decision about one deployment. `at` in Unix time, seconds."""

    seq: int
    at: float
    deployment: str = ""
    model: str = ""
    kind: Literal["change", "heartbeat", "error"]
    mode: str = ""
    old_target: int
    new_target: int
    wanted: int
    ready: int
    binding: str = ""
    reason: str = ""
    counterfactual: str = ""
    terms: tuple[TermDocument, ...] = ()
    clamps: tuple[ClampDocument, ...] = ()
    ages_s: dict[str, float] = {}
    notes: tuple[str, ...] = ()


class ModelStatus(_Document):
    """The replicas of one model."""

    model: str
    mode: str = "act"
    wanted: int = 0
    target: int = 0
    ready: int = 0
    starting: int = 0
    pending: int = 0
    pending_s: float = 0.0
    draining: int = 0
    reason: str = ""
    cold_start_s: float | None = None


class StatusDocument(_Document):
    """What the policy reported last, at `at` (Unix time, seconds)."""

    at: float
    policy_errors: int = 0
    models: dict[str, ModelStatus] = {}
    """By deployment."""


class DecisionsDocument(_Document):
    """The whole answer; `autoscaler` is null while no policy has reported."""

    knobs_rejected: str = ""
    """What is wrong with the knobs given last, so that the earlier ones stay in force; else empty."""
    autoscaler: StatusDocument | None
    decisions: tuple[RecordDocument, ...]
    """Oldest first."""
