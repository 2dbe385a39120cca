"""What a load generator is asked to do, and what it says it saw."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks import REPOSITORY

MODEL = "stub"
TOKENIZER = REPOSITORY / "serve_app" / "weights" / "tideserve_tiny"


@dataclass(frozen=True, slots=True)
class Planned:
    """One request: when it is to be sent, seconds from the start, and what it says."""

    at_s: float
    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Job:
    """A run. The client may write whatever it needs to `directory`."""

    url: str
    """The server, without a path."""
    planned: Sequence[Planned]
    directory: Path
    script: Mapping[str, object] = field(default_factory=dict)
    """The `stub` member of every request's body, see `stub_script.Script`."""
    cancel_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client recorded of one request; None or empty where it records no such thing."""

    order: int | None
    """The request's place in the plan."""
    ttft_s: float | None
    gaps_s: tuple[float, ...]
    """Between tokens, each one."""
    mean_gap_s: float | None
    tokens: int | None
    error: str | None
    """None: the client counts it as a success."""


class Client(Protocol):
    """A load generator in an environment of its own."""

    name: str

    def command(self, job: Job) -> list[str]:
        """Write its input files; the command that sends `job.planned` and then ends by itself."""

    def seen(self, job: Job) -> list[Seen]:
        """Read what it wrote. FileNotFoundError if it wrote nothing."""


def poisson(rate: float, seconds: float, max_tokens: int, seed: int = 0) -> list[Planned]:
    """Arrivals at `rate` per second; every prompt starts with its place in the plan."""
    source, at, planned = random.Random(seed), 0.0, list[Planned]()
    while at < seconds:
        planned.append(Planned(at, f"{len(planned)}: tell me about the tide", max_tokens))
        at += source.expovariate(rate)
    return planned


def order_of(prompt: str) -> int:
    """The place in the plan that a prompt starts with. ValueError if it has none."""
    return int(prompt.partition(":")[0])
