"""The speed and start of a replica that the policy assumes until it has measured them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from serve_app.settings.closed_model import ClosedModel

StartSeconds = Annotated[float, Field(gt=0, le=86_400)]


class StartingValues(ClosedModel):
    """The names are those of a fleet file (`replay.profile`); `tideserve capacity` measures the values.

    The step time is the prior of the policy's fit: it counts as known within a factor of two, and one second
    of measured steps outweighs it.
    """

    step_base_s: Annotated[float, Field(ge=1e-5, le=60)]
    step_per_sequence_s: Annotated[float, Field(ge=0, le=1)]
    step_per_kv_token_s: Annotated[float, Field(ge=0, le=0.001)]
    step_per_prefill_token_s: Annotated[float, Field(ge=0, le=1)]
    cold_start_s: tuple[StartSeconds, StartSeconds] | None = None
    """Least and most seconds of a replica's start. None for the general assumption."""
    kv_cache_tokens: Annotated[int, Field(ge=1024, le=1_000_000_000)] | None = None
    """Tokens in the KV cache of one replica. None if no limit is assumed."""

    @model_validator(mode="after")
    def _ordered(self) -> StartingValues:
        if self.cold_start_s is not None and self.cold_start_s[0] > self.cold_start_s[1]:
            least, most = self.cold_start_s
            raise ValueError(f"cold_start_s = [{least:g}, {most:g}]: the first must be at most the second")
        return self

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """Seconds per step, and per sequence, KV token and prefill token in it."""
        return (
            self.step_base_s,
            self.step_per_sequence_s,
            self.step_per_kv_token_s,
            self.step_per_prefill_token_s,
        )

    @property
    def typical_start_s(self) -> float | None:
        """The mean of the two `cold_start_s`, because measured starts are a median."""
        return None if self.cold_start_s is None else sum(self.cold_start_s) / 2
