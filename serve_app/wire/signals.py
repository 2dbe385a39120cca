"""What the policy sees: signals of engine and ingress replicas, each report with its age.

A replica reports flat numbers, because that is all Ray Serve carries from a replica to a policy. The
field names here are the names on the wire, in the decision records and in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Generic, TypeVar

S = TypeVar("S")

COLD_START_GUESS_S = 60.0
"""Until a cold start has been measured."""
STALE_AFTER_S = 10.0
"""A report older than this no longer says what its replica does: ten missed reports, one a second."""


@dataclass(frozen=True, slots=True)
class EngineSignals:
    """One engine replica. Totals count since the replica started; the rest is of now or the last seconds."""

    running_requests: float = 0.0
    waiting_requests: float = 0.0
    running_tokens: float = 0.0
    waiting_tokens: float = 0.0
    """Prompt tokens not yet prefilled."""
    oldest_waiting_s: float = 0.0
    ongoing_requests: float = 0.0
    """Open on the data plane: what a drain would wait for."""
    kv_cache_usage_ratio: float = 0.0
    kv_cache_tokens: float = 0.0
    """Tokens the whole KV cache holds."""

    prompt_tokens_total: float = 0.0
    """Prompt tokens prefilled, those found in the prefix cache not counted."""
    generation_tokens_total: float = 0.0
    finished_requests_total: float = 0.0
    finished_prompt_tokens_total: float = 0.0
    finished_generation_tokens_total: float = 0.0
    preemptions_total: float = 0.0

    steps: float = 0.0
    """Engine steps since the last report; 0 when idle. The means below are over these."""
    step_s: float = 0.0
    step_batch: float = 0.0
    """Sequences that decoded in a step."""
    step_prefill_tokens: float = 0.0
    step_kv_tokens: float = 0.0

    ttft_count: float = 0.0
    """Requests that got their first token in the last 30 s; the next eight are their percentiles."""
    ttft_queue_p50_s: float = 0.0
    ttft_queue_p90_s: float = 0.0
    ttft_queue_p95_s: float = 0.0
    ttft_queue_p99_s: float = 0.0
    ttft_prefill_p50_s: float = 0.0
    ttft_prefill_p90_s: float = 0.0
    ttft_prefill_p95_s: float = 0.0
    ttft_prefill_p99_s: float = 0.0
    itl_count: float = 0.0
    itl_p50_s: float = 0.0
    itl_p90_s: float = 0.0
    itl_p95_s: float = 0.0
    itl_p96_s: float = 0.0
    itl_p97_s: float = 0.0
    itl_p98_s: float = 0.0
    itl_p99_s: float = 0.0


@dataclass(frozen=True, slots=True)
class IngressSignals:
    """What one ingress replica saw of one model."""

    arrivals_total: float = 0.0
    arrived_bytes_total: float = 0.0
    """Bytes of the request bodies; prompt tokens are learned from them, because only engines tokenize."""
    held_requests: float = 0.0
    held_bytes: float = 0.0
    oldest_held_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading(Generic[S]):
    """A report and its age in seconds. A replica without one is absent: not in the snapshot's mapping."""

    signals: S
    age_s: float

    @property
    def fresh(self) -> bool:
        """Whether the report still speaks for its replica."""
        return 0.0 <= self.age_s <= STALE_AFTER_S


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is known of the replicas asked for and not yet running."""

    starting: int = 0
    """Replicas whose process runs and is loading."""
    pending: int = 0
    """Replicas asked for that have no place yet."""
    pending_s: float = 0.0
    """How long some replica has been pending."""
    reason: str = ""
    """Why, as far as the cluster says."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All the policy knows of one model at one moment."""

    target: int
    """Replicas asked for at present."""
    ready: int
    """Replicas that take requests."""
    ingress_ready: int = 1
    """Ingress replicas that take requests."""
    engines: Mapping[str, Reading[EngineSignals]] = field(default_factory=dict)
    ingress: Mapping[str, Reading[IngressSignals]] = field(default_factory=dict)
    draining: int = 0
    capacity: Capacity = Capacity()
    cold_start_s: float | None = None
    """Measured: from the start of a replica's process to its readiness; None before the first one."""
    assumed_start_s: float = COLD_START_GUESS_S
    """The same until it has been measured."""

    @property
    def start_measured(self) -> bool:
        """Whether `cold_start_s` is known."""
        return self.cold_start_s is not None and 0 < self.cold_start_s < inf

    @property
    def horizon_s(self) -> float:
        """How far ahead to look: the time a replica takes to start, or a guess at it."""
        measured = self.cold_start_s
        return measured if measured is not None and 0 < measured < inf else self.assumed_start_s


ENGINE_FIELDS = tuple(item.name for item in fields(EngineSignals))
INGRESS_FIELDS = tuple(item.name for item in fields(IngressSignals))


def ingress_key(deployment: str, name: str) -> str:
    """The name on the wire of an ingress signal about the model of engine deployment `deployment`."""
    return f"{deployment}:{name}"
