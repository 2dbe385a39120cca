"""A request before it is sent."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planned:
    """What is sent, and when. Equal scenarios and seeds plan equal requests."""

    index: int
    """Its place in the plan, from 0; its prompt is drawn from the seed and this."""
    at_s: float
    """The intended time, seconds after the run's start."""
    kind: str
    model: str | None
    """None: the only one that generates."""
    api: str
    """`completions` or `chat`."""
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    """The first tokens of the prompt, which other requests of the kind share."""
    prefix: int = 0
    """Which of the kind's prefixes."""
    leave_after_tokens: int | None = None
    leave_after_s: float | None = None
