"""A hardware profile: the step time, limits, cold start and price of one replica."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from serve_app.policy.capacity_model import StepTime
from serve_app.settings.closed_model import ClosedModel

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


Latency = NotNegative | None
"""Seconds; None where the percentile reaches what was never answered."""


class Knee(ClosedModel):
    """The highest rate at which one replica kept its targets under Poisson arrivals, and the way there.

    For people: a replay computes with the step time.
    """

    prompt_tokens: Annotated[int, Field(ge=1)]
    output_tokens: Annotated[int, Field(ge=1)]
    rps: NotNegative
    """Requests a second; 0 where the lowest of the curve was missed too."""
    bound: Literal["TTFT", "ITL", "queue", "client", "none"]
    """What the next higher rate missed: a target, its answers (the queue grew), or the client its own time;
    `none` where no rate was missed."""
    ttft_target_s: Annotated[float, Field(gt=0)] | None
    itl_target_s: Annotated[float, Field(gt=0)] | None
    """None: an empty replica misses it, so it was left out."""
    percentile: Annotated[int, Field(ge=1, le=99)]
    ttft_s: Latency
    itl_s: Latency
    """At `rps`, or at the lowest rate of the curve where that is 0."""
    formula_rps: Positive
    """What the policy's formula makes of the step time, for the same requests and targets."""
    curve: Annotated[tuple[tuple[Positive, Latency, Latency, NotNegative], ...], Field(min_length=1)]
    """Rising: requests a second, TTFT and ITL at the percentile, share of requests within both targets."""


class Profile(ClosedModel):
    """One replica of one model on one kind of GPU. The fields of a `--fleet` file."""

    name: str
    source: str
    """The source of the numbers: a measurement with its machine and date, or published figures."""
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
    warm_node_start_s: tuple[NotNegative, NotNegative] | None = None
    """The same on a warm node: one that was up and had vLLM imported. None: starts there are as long."""
    warm_nodes: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Replicas for which there are nodes that are always up. Replicas beyond them start on cold nodes."""
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
    knee: Knee | None = None
    """None where it was not measured."""

    @property
    def step(self) -> StepTime:
        """The coefficients as the policy's own model has them."""
        return StepTime(
            self.step_base_s,
            self.step_per_sequence_s,
            self.step_per_kv_token_s,
            self.step_per_prefill_token_s,
        )
