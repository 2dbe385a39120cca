"""Kinds of requests, and the distributions of their lengths, turns and pauses."""

from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator


class ScenarioPart(BaseModel):
    """A part of a scenario's file: unknown keys, infinities and NaN are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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
    """A log-normal distribution, as of real prompts and answers, cut to least and most."""

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
    """The distribution that a value is meant to be, so that an error speaks of that one alone."""
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
"""A number of turns, an even range of them, or a geometric distribution."""
DISTRIBUTION_TAGS = frozenset(("number", "range", "spread", "geometric"))


class Leave(ScenarioPart):
    """Clients that close the connection before the answer is whole."""

    share: Annotated[float, Field(gt=0, le=1)]
    after_tokens: Annotated[int, Field(ge=1)] | None = None
    """Pieces of the answer."""
    after_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Seconds after the intended time."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.after_tokens is None) == (self.after_s is None):
            raise ValueError("one of after_tokens and after_s must be given")
        return self


class Conversation(ScenarioPart):
    """Several turns, each of which sends all turns before it and a new message."""

    # ShareGPT has 330,239 turns in 94,145 conversations, 3.51 each (Yan et al., "ShareChat", 2025, table 1).
    # In a production log 75 % have at most 4 (Wang et al., "BurstGPT", 2024); with these numbers it is 74 %.
    turns: Turns = Geometric(mean=3.5, most=40)
    """The most turns. A broken answer, the model's context or the scenario's time may end it earlier."""
    # From Mooncake's conversation trace (Qin et al., FAST 2025), whose blocks of 512 tokens tell which
    # request continues which: 3,540 turns come 126 s after the one before at the median, its answer included,
    # with quartiles of 69 and 267 s, so sigma is 1.0. ServeGen (Xiang et al., 2025) has about 100 s.
    think_s: Think = PauseSpread(median=120, sigma=1.0, least=1, most=3600)
    """Seconds from the end of an answer to the intended time of the next turn."""


class Kind(ScenarioPart):
    """One kind of request, or of conversation."""

    kind: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")] = "default"
    share: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Weight among the kinds; they need not add up to 1."""
    model: str | None = None
    """None: the only model served that generates."""
    api: Literal["completions", "chat"] = "completions"
    """`completions` sends token ids, so prompts have their exact length; `chat` sends words, and comes
    near."""
    prompt_tokens: Length = 64
    """The whole prompt, with `shared_prefix_tokens`; in a conversation, the new message of each turn. The
    lengths of a trace take precedence."""
    output_tokens: Length = 32
    """The answer has exactly this many (`ignore_eos`)."""
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Tokens of a system prompt, with which each prompt of this kind begins."""
    prefixes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Different system prompts, drawn evenly."""
    leave: Leave | None = None
    conversation: Conversation | None = None
    """Each arrival begins a conversation, which `shared_prefix_tokens` open."""

    @model_validator(mode="after")
    def _speaks(self) -> Self:
        if self.conversation is not None and self.api != "chat":
            raise ValueError(f"api = {self.api}: must be chat with a conversation")
        return self
