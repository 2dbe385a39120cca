"""What must hold of the answers."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Bound = Annotated[float, Field(gt=0, le=1e9)]


class Bounds(BaseModel):
    """Percentiles that must stay below a bound; None is not judged."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    p50: Bound | None = None
    p95: Bound | None = None
    p99: Bound | None = None

    @model_validator(mode="after")
    def _rising(self) -> Self:
        known = [(name, bound) for name, bound in self if bound is not None]
        for (lower, low), (upper, high) in pairwise(known):
            if low > high:
                raise ValueError(f"{lower} = {low:g} must be at most {upper} = {high:g}")
        return self


class Slos(BaseModel):
    """The defaults are for a GPU; a scenario overrides what it runs on. None is not judged."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    ttft_ms: Bounds | None = Bounds(p50=100, p95=200, p99=500)
    """Of all requests, cold ones included, from the intended time on."""
    warm_ttft_ms: Bounds | None = None
    """Of the requests that were not held for want of a replica."""
    cold_wait_s: Bounds | None = None
    """How long the others were held."""
    itl_ms: Bounds | None = Bounds(p50=15, p95=25, p99=40)
    """Time between two pieces of an answer, over all answers."""
    hundred_tokens_s: Bounds | None = Bounds(p50=2, p95=3, p99=5)
    """From the intended time to the hundredth token, of answers that have as many."""
    error_rate: Annotated[float, Field(gt=0, le=1)] | None = 0.01
    """Rejected, failed, broken and abandoned requests, of all."""
