"""The options of a measurement, and its constants in one record so that tests can shorten them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Method:
    """Times in seconds, and the bounds of the search for the knee."""

    scrape_s: float = 1.0
    """Between two scrapes; engines report once a second."""
    report_lag_s: float = 3.0
    """From a step to `/metrics`: a second to the report, one to Ray's agent, and one to spare."""
    setup_s: float = 15.0
    """The longest wait for the first gauges of a replica."""

    fewest_requests: int = 100
    """Requests that count at each rate: 5 of them are above P95."""
    longest_factor: float = 15.0
    """A rate is kept for at most this many times the seconds asked for, to have that many requests."""
    lead_s: float = 0.5
    """From planning a rate to its first request; meanwhile the client opens its session."""
    least_grace_s: float = 5.0
    """From the last arrival to the end of requests that are still open, at least."""
    client_lag_s: float = 0.010
    """The lateness of the client that is always allowed, as in load tests."""
    growth: float = 1.25
    most_growths: int = 14
    """1.25 ** 14 is 23. If the formula is off by more, its figures say so, and the search ends."""
    most_halvings: int = 5
    resolution: float = 1.05
    """The search ends when the lowest rate that failed is at most this many times the highest that passed."""


USUAL = Method()


@dataclass(frozen=True, slots=True)
class Plan:
    """The model to measure, the time for it, and the requests that search the knee."""

    url: str
    model: str | None = None
    """None: the only one that is served."""
    duration_s: float = 90.0
    """Seconds of the loads that the step time is fitted to; checks and last reports take some ten more."""
    prompt_tokens: int = 512
    output_tokens: int = 128
    step_s: float = 20.0
    """The least seconds at each rate."""
    seed: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request."""
    method: Method = USUAL
