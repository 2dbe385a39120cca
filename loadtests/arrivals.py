"""When requests come: stretches of time, one after another, each with its shape."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Seconds = Annotated[float, Field(gt=0, le=604_800)]
Rate = Annotated[float, Field(gt=0, le=100_000)]
Spacing = Literal["poisson", "even"]


class ScenarioPart(BaseModel):
    """A part of a scenario's file: unknown keys, infinities and NaN are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Steady(ScenarioPart):
    """A constant number of requests per second."""

    shape: Literal["steady"]
    for_s: Seconds
    rate: Rate
    spacing: Spacing = "poisson"


class Ramp(ScenarioPart):
    """A rate that changes in a straight line."""

    shape: Literal["ramp"]
    for_s: Seconds
    rate: Annotated[float, Field(ge=0, le=100_000)]
    to_rate: Annotated[float, Field(ge=0, le=100_000)]
    spacing: Spacing = "poisson"

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.rate + self.to_rate <= 0:
            raise ValueError("rate and to_rate are both 0; shape: idle says so")
        return self


class Wave(ScenarioPart):
    """A day and night: rate * (1 + swing * sin(2 pi t / period_s - pi / 2)), which begins at its least."""

    shape: Literal["wave"]
    for_s: Seconds
    rate: Rate
    """On average."""
    swing: Annotated[float, Field(ge=0, le=1)]
    """Share of `rate` that it rises and falls by."""
    period_s: Seconds
    spacing: Spacing = "poisson"


class Burst(ScenarioPart):
    """A number of requests within `over_s` of the start of the stretch, and none after."""

    shape: Literal["burst"]
    for_s: Seconds
    requests: Annotated[int, Field(ge=1, le=1_000_000)]
    over_s: Annotated[float, Field(ge=0, le=604_800)] = 0.0
    """0: all at once."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.over_s > self.for_s:
            raise ValueError(f"over_s = {self.over_s:g} must be at most for_s = {self.for_s:g}")
        return self


class Idle(ScenarioPart):
    """Nothing."""

    shape: Literal["idle"]
    for_s: Seconds


class Recorded(ScenarioPart):
    """A trace in any format that `tideserve replay` reads, with the lengths of its prompts and answers."""

    shape: Literal["trace"]
    file: str | None = None
    """Relative to the scenario's file. None: `--trace` names it."""
    start_s: Annotated[float, Field(ge=0)] = 0.0
    """Where in the trace to begin."""
    for_s: Seconds
    """How much of it, in seconds of the trace before `time`."""
    time: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Factor on the time between requests: 0.1 replays ten times faster."""
    rate: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Factor on the number of requests over the same time."""
    tokens: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor on prompt and answer lengths, for a model with a short context."""
    most_prompt_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 1_000_000
    most_output_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 1_000_000


Arrivals = Annotated[Steady | Ramp | Wave | Burst | Idle | Recorded, Field(discriminator="shape")]
ARRIVALS_TAGS = frozenset(("steady", "ramp", "wave", "burst", "idle", "trace"))
