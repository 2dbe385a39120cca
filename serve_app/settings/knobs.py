"""The knobs: values that an operator changes while an application runs. A change restarts nothing.

They are in the `user_config` of the `Ingress` deployment, which Ray Serve passes to running replicas.
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
"""More percentiles of inter-token latencies: some steps only decode and others also prefill, and the share at
which the latter begin tells a replica's capacity."""

Seconds = Annotated[float, Field(ge=0, le=86_400)]


def _check_at_most(path: str, least: int, most: int) -> None:
    if least > most:
        raise ValueError(f"{path}min_replicas = {least} must be at most max_replicas = {most}")


class Knobs(ClosedModel):
    """Autoscaling of one model's engine replicas. Times in seconds."""

    mode: Literal["act", "advise"] = "act"
    """With `advise`, decisions are recorded but change nothing, except to keep the two bounds below."""
    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1

    ttft_target_s: Annotated[float, Field(gt=0, le=3600)] = 0.2
    ttft_percentile: Percentile = 95
    """The share of requests, in percent, that should see their first token within `ttft_target_s`."""
    itl_target_s: Annotated[float, Field(gt=0, le=60)] = 0.025
    """The same share of inter-token latencies should be at most this long."""

    queue_target_per_replica: Annotated[float, Field(gt=0, le=100_000)] = 8.0
    """The waiting requests that one replica may have, held for a cold start or in engine queues."""
    headroom: Annotated[float, Field(ge=0, le=10)] = 0.15
    """Spare replicas in units of sqrt(replicas the load needs): square-root staffing."""

    upscale_delay_s: Annotated[float, Field(ge=0, le=600)] = 5.0
    """How long a queue must last before replicas are added. From zero there is no delay."""
    downscale_delay_s: Seconds = 60.0
    """How long fewer replicas must have been enough before one of several is removed."""
    downscale_to_zero_delay_s: Seconds = 300.0
    """How long a model must have been idle before its last replica is removed."""

    forecast: bool = True
    """Keep replicas for the demand that is possible within the time a replica takes to start."""
    forecast_quantile: Annotated[float, Field(ge=0, le=1)] = 0.9
    """The share of requests whose demand the forecast should cover."""
    forecast_window_s: Annotated[float, Field(ge=60, le=604_800)] = 7200.0
    """Seconds of traffic, not counting idle time, after which past demand has lost its weight."""
    schedules: tuple[Schedule, ...] = ()
    starting_values: StartingValues | None = None
    """The assumed speed of a replica until its steps and a start have been measured. None: an A100's
    steps."""

    max_held_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 1000
    """Requests that each ingress replica holds while no engine replica is up; others get 429."""
    cold_wait_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """How long a request may be held; then it gets 503."""
    keep_alive_interval_s: Annotated[float, Field(gt=0, le=300)] = 5.0
    """Time between the SSE comments that are sent to a held stream."""

    @model_validator(mode="after")
    def _ordered(self) -> Knobs:
        _check_at_most("", self.min_replicas, self.max_replicas)
        for index, schedule in enumerate(self.schedules):
            _check_at_most(f"schedules[{index}].", schedule.min_replicas, self.max_replicas)
        return self


class IngressKnobs(ClosedModel):
    """Autoscaling of the ingress replicas, by the streams they relay; held streams do not count."""

    min_replicas: Annotated[int, Field(ge=1, le=1000)] = 2
    """Two, so that another is left when one is lost; one if only `max_replicas: 1` is given."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = 4
    target_ongoing_requests: Annotated[float, Field(gt=0, le=1_000_000)] = 200.0
    """Streams that one ingress replica should relay: a core relays about 4,000 tokens per second."""
    downscale_delay_s: Seconds = 300.0

    @model_validator(mode="before")
    @classmethod
    def _default_within_bounds(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("max_replicas") == 1 and "min_replicas" not in given:
            return {**given, "min_replicas": 1}
        return given

    @model_validator(mode="after")
    def _ordered(self) -> IngressKnobs:
        _check_at_most("", self.min_replicas, self.max_replicas)
        return self


class LiveSettings(ClosedModel):
    """The `user_config` of the `Ingress` deployment: knobs by model name, and the ingress's own.

    Values that are not given have their defaults.
    """

    autoscaling: dict[str, dict[str, Any]] = Field(default_factory=dict)
    ingress: IngressKnobs = IngressKnobs()


def overlay(defaults: Knobs, given: Mapping[str, Any]) -> Knobs:
    """Return `defaults` with the values of `given` in place. Raises pydantic's ValidationError."""
    return Knobs.model_validate({**defaults.model_dump(mode="json"), **given})
