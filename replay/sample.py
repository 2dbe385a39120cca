"""The sample of the fleet that a baseline policy sees, and the protocol of these policies."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from traces.trace import Floats, Ints


def _no_numbers() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one moment, with the metrics of a serving system. Arrays are by ready replica."""

    at: float
    """Seconds since the start of the replay."""
    target: int
    """Replicas asked for."""
    ready: int
    """Replicas that take requests, without draining and starting ones."""
    held: int
    """Requests queued in the ingress because no replica is ready."""
    running: Floats
    """Requests in each engine's batch."""
    waiting: Floats
    """Requests in each engine's queue."""
    kv_usage: Floats
    """Share of each KV cache in use, 0 to 1."""
    kv_cache_tokens: float
    """Tokens that one replica's KV cache holds."""
    # Totals since the start, of the whole fleet.
    arrivals: float
    """Requests that reached the ingress."""
    arrived_tokens: float
    """Their prompt tokens."""
    first_tokens: float
    """Requests that got their first token, and the sum of their TTFTs in seconds."""
    ttft_sum_s: float
    finished: float
    """Requests that ended, their prompt and their generated tokens."""
    finished_prompt_tokens: float
    finished_output_tokens: float
    itl_count: float
    """Inter-token latencies and their sum in seconds."""
    itl_sum_s: float
    replicas: Ints = field(default_factory=_no_numbers)
    """The number of each ready replica, in the order of the arrays; a number is never used twice. Empty if
    unknown: policies that keep a history by replica then use the index in the arrays."""

    @property
    def ongoing(self) -> float:
        """Requests that run, wait in engines or are queued in the ingress."""
        return float(self.running.sum() + self.waiting.sum()) + self.held


class Autoscaler(Protocol):
    """A policy under replay. It keeps its own history, and decides at every `interval_s` from 0 on."""

    @property
    def name(self) -> str:
        """The name for reports, with its settings: `ray:5`."""
        ...

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `decide`."""
        ...

    def decide(self, sample: Sample) -> int:
        """Replicas to ask for now. The caller clips to the bounds of the fleet."""
        ...
