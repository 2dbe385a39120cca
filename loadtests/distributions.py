"""What the numbers of a scenario are drawn from. The keys that are given say which law is meant."""

from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import Discriminator, Field, Tag, model_validator

from loadtests.arrivals import ScenarioPart

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
TurnCount = Annotated[int, Field(ge=1, le=100)]
"""Each turn of a plan holds the next one, and Python pickles no more than some 300 records in one another."""
Pause = Annotated[float, Field(ge=0, le=86_400)]
"""Seconds."""
Number = TypeVar("Number", int, float)


class Between(ScenarioPart, Generic[Number]):
    """Evenly drawn, both ends included."""

    least: Number
    most: Number

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least = {self.least} must be at most most = {self.most}")
        return self


class LogNormal(ScenarioPart, Generic[Number]):
    """As lengths of real prompts and answers spread: exp of a normal law, cut to least and most."""

    median: Number
    sigma: Annotated[float, Field(gt=0, le=4)]
    """Standard deviation of the logarithm: 0.7 puts P95 at 3.2 times the median, 1.0 at 5.2 times."""
    least: Number
    most: Number

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.least <= self.median <= self.most:
            raise ValueError(
                f"median = {self.median} must be from least = {self.least} to most = {self.most}"
            )
        return self


class TokenSpread(LogNormal[Tokens]):
    """A log-normal spread of lengths, tokens."""

    least: Tokens = 1


class PauseSpread(LogNormal[Pause]):
    """A log-normal spread of pauses, seconds."""

    least: Pause = 0.0


class Geometric(ScenarioPart):
    """A conversation that goes on after each turn with the same chance, 1 - 1/mean, up to `most` turns.

    A mean of 3.5 has 29 % of conversations end after one turn, 49 % after two and 74 % after four.
    """

    mean: Annotated[float, Field(ge=1, le=100)]
    """Before the cut at `most`."""
    most: TurnCount = 100

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.mean > self.most:
            raise ValueError(f"mean = {self.mean:g} must be at most most = {self.most}")
        return self


def _sort(value: Any) -> str:
    """Which law a value is meant to be, so that an error speaks of that one alone."""
    if isinstance(value, dict):
        return "spread" if {"median", "sigma"} & set(value) else "range"
    return "range" if isinstance(value, Between) else "spread" if isinstance(value, LogNormal) else "number"


def _sort_turns(value: Any) -> str:
    if isinstance(value, Geometric) or (isinstance(value, dict) and "mean" in value):
        return "geometric"
    return "range" if isinstance(value, Between | dict) else "number"


Length = Annotated[
    Annotated[Tokens, Tag("number")]
    | Annotated[Between[Tokens], Tag("range")]
    | Annotated[TokenSpread, Tag("spread")],
    Discriminator(_sort),
]
"""A number of tokens, an even range of them, or a log-normal spread."""
Think = Annotated[
    Annotated[Pause, Tag("number")]
    | Annotated[Between[Pause], Tag("range")]
    | Annotated[PauseSpread, Tag("spread")],
    Discriminator(_sort),
]
"""A number of seconds, an even range of them, or a log-normal spread."""
Turns = Annotated[
    Annotated[TurnCount, Tag("number")]
    | Annotated[Between[TurnCount], Tag("range")]
    | Annotated[Geometric, Tag("geometric")],
    Discriminator(_sort_turns),
]
"""A number of turns, an even range of them, or a geometric law."""
DISTRIBUTION_TAGS = frozenset(("number", "range", "spread", "geometric"))
