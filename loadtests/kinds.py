"""What requests are: a scenario mixes kinds by their shares."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from loadtests.arrivals import ScenarioPart

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class Between(ScenarioPart):
    """Evenly drawn, both ends included."""

    least: Tokens
    most: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least = {self.least} must be at most most = {self.most}")
        return self


class LogNormal(ScenarioPart):
    """As lengths of real prompts and answers spread: exp of a normal law, cut to least and most."""

    median: Tokens
    sigma: Annotated[float, Field(gt=0, le=4)]
    """Standard deviation of the logarithm: 0.7 puts P95 at 3.2 times the median, 1.0 at 5.2 times."""
    least: Tokens = 1
    most: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.least <= self.median <= self.most:
            raise ValueError(
                f"median = {self.median} must be from least = {self.least} to most = {self.most}"
            )
        return self


def _sort(length: Any) -> str:
    """Which of the three a length is meant to be, so that an error speaks of that one alone."""
    if isinstance(length, dict):
        return "spread" if {"median", "sigma"} & set(length) else "range"
    return "range" if isinstance(length, Between) else "spread" if isinstance(length, LogNormal) else "number"


Length = Annotated[
    Annotated[Tokens, Tag("number")] | Annotated[Between, Tag("range")] | Annotated[LogNormal, Tag("spread")],
    Discriminator(_sort),
]
"""A number of tokens, an even range of them, or a log-normal spread."""
LENGTH_TAGS = frozenset(("number", "range", "spread"))


class Leave(ScenarioPart):
    """Clients that close the connection before the answer is whole."""

    share: Annotated[float, Field(gt=0, le=1)]
    after_tokens: Annotated[int, Field(ge=1)] | None = None
    """After this many pieces of the answer."""
    after_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """This long after the intended time, whatever has arrived."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.after_tokens is None) == (self.after_s is None):
            raise ValueError("one of after_tokens and after_s must be given")
        return self


class Kind(ScenarioPart):
    """One kind of request."""

    kind: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")] = "default"
    share: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Weight among the kinds; they need not add up to 1."""
    model: str | None = None
    """None: the only model served that generates."""
    api: Literal["completions", "chat"] = "completions"
    """`completions` sends token ids, so prompts have their exact length; words in a `chat` come near it."""
    prompt_tokens: Length = 64
    """All of the prompt, `shared_prefix_tokens` included. A trace's own lengths win."""
    output_tokens: Length = 32
    """The answer has exactly this many (`ignore_eos`)."""
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """A system prompt that the first tokens of each prompt of this kind repeat."""
    prefixes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """How many different ones, drawn evenly."""
    leave: Leave | None = None
