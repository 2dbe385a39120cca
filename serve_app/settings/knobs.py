"""The knobs: what an operator turns while an application runs. Changing one restarts nothing.

They travel in the `user_config` of the `Ingress` deployment, which Ray Serve hands to running replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from serve_app.settings.closed_model import ClosedModel
from serve_app.settings.schedule import Schedule
from serve_app.settings.starting_values import StartingValues

Percentile = Literal[50, 90, 95, 99]
PERCENTILES: tuple[Percentile, ...] = (50, 90, 95, 99)
"""The percentiles replicas report of their latencies."""
ITL_PERCENTILES = (50, 90, 95, 96, 97, 98, 99)
"""Of inter-token latencies more: they come in two kinds, decoding steps and those that also prefill, and
where the one gives way to the other is what a replica's capacity is read from."""

Seconds = Annotated[float, Field(ge=0, le=86_400)]


class Knobs(ClosedModel):
    """Autoscaling of one model's engine replicas. Times in seconds."""

    mode: Literal["act", "advise"] = "act"
    """`advise` decides and records, and changes nothing beyond `min_replicas` and `max_replicas`."""
    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1

    ttft_target_s: Annotated[float, Field(gt=0, le=3600)] = 0.2
    ttft_percentile: Percentile = 95
    """The share of requests, in percent, that should see their first token within `ttft_target_s`."""
    itl_target_s: Annotated[float, Field(gt=0, le=60)] = 0.025
    """The same share of inter-token latencies should be at most this."""

    queue_target_per_replica: Annotated[float, Field(gt=0, le=100_000)] = 8.0
    """Requests waiting, held for a cold start or in engine queues, that one replica may have."""
    headroom: Annotated[float, Field(ge=0, le=10)] = 0.15
    """Spare replicas in units of sqrt(replicas the load needs): square-root staffing."""

    upscale_delay_s: Annotated[float, Field(ge=0, le=600)] = 5.0
    """How long a queue must stand before it asks for replicas. From zero there is no delay."""
    downscale_delay_s: Seconds = 60.0
    """How long fewer replicas must have been enough before one of several goes."""
    downscale_to_zero_delay_s: Seconds = 300.0
    """How long a model must have been idle before its last replica goes."""

    forecast: bool = True
    """Hold what demand may rise to within the time a replica takes to start."""
    forecast_quantile: Annotated[float, Field(ge=0, le=1)] = 0.9
    """The share of requests whose demand should have been foreseen."""
    forecast_window_s: Annotated[float, Field(ge=60, le=604_800)] = 7200.0
    """Seconds of traffic, silence not counted, over which the memory of demand fades."""
    schedules: tuple[Schedule, ...] = ()
    starting_values: StartingValues | None = None
    """What a replica is taken for until steps and a start have been measured. None: an A100's steps."""

    max_held_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 1000
    """Requests each ingress replica holds while no engine replica is up; beyond them, 429."""
    cold_wait_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """How long a request may be held; then 503."""
    keep_alive_interval_s: Annotated[float, Field(gt=0, le=300)] = 5.0
    """Time between the SSE comments that a held stream gets."""

    @model_validator(mode="after")
    def _ordered(self) -> Knobs:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas = {self.min_replicas} must be at most max_replicas = {self.max_replicas}"
            )
        for index, schedule in enumerate(self.schedules):
            if schedule.min_replicas > self.max_replicas:
                raise ValueError(
                    f"schedules[{index}].min_replicas = {schedule.min_replicas} must be at most "
                    f"max_replicas = {self.max_replicas}"
                )
        return self


class IngressKnobs(ClosedModel):
    """Autoscaling of the ingress replicas, on the streams they carry; those that are held are not."""

    min_replicas: Annotated[int, Field(ge=1, le=1000)] = 2
    """Two, so that the loss of one leaves another; one where `max_replicas: 1` alone is given."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = 4
    target_ongoing_requests: Annotated[float, Field(gt=0, le=1_000_000)] = 200.0
    """Streams one ingress replica should carry: a core relays about 4,000 tokens a second."""
    downscale_delay_s: Seconds = 300.0

    @model_validator(mode="before")
    @classmethod
    def _default_within_bounds(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("max_replicas") == 1 and "min_replicas" not in given:
            return {**given, "min_replicas": 1}
        return given

    @model_validator(mode="after")
    def _ordered(self) -> IngressKnobs:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas = {self.min_replicas} must be at most max_replicas = {self.max_replicas}"
            )
        return self


class LiveSettings(ClosedModel):
    """The `user_config` of the `Ingress` deployment: knobs by model name, and the ingress's own.

    Only what is to differ from the defaults need be given.
    """

    autoscaling: dict[str, dict[str, Any]] = Field(default_factory=dict)
    ingress: IngressKnobs = IngressKnobs()


def overlay(defaults: Knobs, given: Mapping[str, Any]) -> Knobs:
    """`defaults` with what is `given` in place. Raises pydantic's ValidationError."""
    return Knobs.model_validate({**defaults.model_dump(mode="json"), **given})
