"""What a model's policy takes a replica to be until it has measured one, in place of the general guess."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from serve_app.settings.closed_model import ClosedModel

StartSeconds = Annotated[float, Field(gt=0, le=86_400)]


class StartingValues(ClosedModel):
    """By the names that a fleet file has (`replay.profile`); `tideserve capacity` measures them.

    The step time is the prior of the policy's fit: known within a factor of two, and outweighed by a second
    of steps.
    """

    step_base_s: Annotated[float, Field(ge=1e-5, le=60)]
    step_per_sequence_s: Annotated[float, Field(ge=0, le=1)]
    step_per_kv_token_s: Annotated[float, Field(ge=0, le=0.001)]
    step_per_prefill_token_s: Annotated[float, Field(ge=0, le=1)]
    cold_start_s: tuple[StartSeconds, StartSeconds] | None = None
    """Least and most seconds of a replica's start. None: the general guess."""
    kv_cache_tokens: Annotated[int, Field(ge=1024, le=1_000_000_000)] | None = None
    """Of one replica. None: no limit is assumed."""

    @model_validator(mode="after")
    def _ordered(self) -> StartingValues:
        if self.cold_start_s is not None and self.cold_start_s[0] > self.cold_start_s[1]:
            least, most = self.cold_start_s
            raise ValueError(f"cold_start_s = [{least:g}, {most:g}]: the first must be at most the second")
        return self

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """Seconds of a step, and of a sequence, a KV token and a prefill token in it."""
        return (
            self.step_base_s,
            self.step_per_sequence_s,
            self.step_per_kv_token_s,
            self.step_per_prefill_token_s,
        )

    @property
    def typical_start_s(self) -> float | None:
        """Seconds in the middle of `cold_start_s`, as those measured are a median."""
        return None if self.cold_start_s is None else sum(self.cold_start_s) / 2
