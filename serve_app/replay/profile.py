"""What one replica is: its step time, its limits, what it takes to start, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from serve_app.autoscaling.service import StepTime

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Profile(BaseModel):
    """One replica of one model on one kind of GPU. The fields of a `--fleet` file."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    source: str
    """Where the numbers come from: a measurement with its machine and date, or published figures."""
    gpu: str
    gpus: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs of one replica (tensor parallel)."""
    price_per_gpu_hour: NotNegative = 0.0
    """US dollars; 0 where no price is known."""

    step_base_s: Positive
    step_per_sequence_s: NotNegative
    step_per_kv_token_s: NotNegative
    step_per_prefill_token_s: NotNegative
    fit_error: NotNegative = 0.0
    """Median relative error of the step-time model on what it was fitted to; 0 where it was not fitted."""

    kv_cache_tokens: Annotated[int, Field(ge=1024, le=1_000_000_000)]
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = 64
    max_num_batched_tokens: Annotated[int, Field(ge=16, le=1_048_576)] = 8192
    """Tokens of one step: a longer prompt is prefilled in chunks of this size."""

    cold_start_s: tuple[NotNegative, NotNegative] = (60.0, 90.0)
    """Least and most seconds from asking for a replica to its first request, drawn evenly."""
    cold_start_phases: Mapping[str, NotNegative] = {
        "process": 0.04,
        "imports": 0.16,
        "configuration": 0.04,
        "weights_and_kv_cache": 0.60,
        "serving_layer": 0.02,
        "warm_up": 0.12,
        "data_plane": 0.02,
    }
    """Each phase's share of it, in order."""

    @property
    def step(self) -> StepTime:
        """The coefficients as the policy's own model has them."""
        return StepTime(
            self.step_base_s,
            self.step_per_sequence_s,
            self.step_per_kv_token_s,
            self.step_per_prefill_token_s,
        )
