"""The signals that engine and ingress replicas report to the policy.

A replica reports flat numbers, because Ray Serve carries nothing else from a replica to a policy. The field
names are used on the wire, in the decision records and in the documentation.
"""

from dataclasses import fields
from typing import Generic, TypeVar

from serve_app.wire.quick_dataclass import quick_dataclass

S = TypeVar("S")

STALE_AFTER_S = 10.0
"""An older report no longer counts: ten reports in a row, one a second, are missing."""

ONGOING_REQUESTS = "ongoing_requests"
"""The metric of an ingress replica for its open requests of all models, without queued ones."""

ENGINE_IDENTITY = "engine_identity"
"""The metric of an engine replica for its identity: `identity_number` of `serve_app.settings.identity`."""


@quick_dataclass(frozen=True, slots=True)
class EngineSignals:
    """The signals of one engine replica. Totals count since its start. The rest covers the last seconds."""

    running_requests: float = 0.0
    waiting_requests: float = 0.0
    running_tokens: float = 0.0
    waiting_tokens: float = 0.0
    """Prompt tokens not yet prefilled."""
    background_running_requests: float = 0.0
    """Of the lane `background`, which no other field of requests, tokens and latencies includes."""
    background_waiting_requests: float = 0.0
    background_running_tokens: float = 0.0
    background_waiting_tokens: float = 0.0
    ongoing_requests: float = 0.0
    """Requests of all lanes open on the data plane. A drain waits for them."""
    kv_cache_usage_ratio: float = 0.0
    kv_cache_tokens: float = 0.0
    """The size of the whole KV cache in tokens."""

    prompt_tokens_total: float = 0.0
    """Prompt tokens prefilled, without those found in the prefix cache."""
    finished_requests_total: float = 0.0
    finished_prompt_tokens_total: float = 0.0
    finished_generation_tokens_total: float = 0.0

    steps: float = 0.0
    """Engine steps since the last report; 0 when idle. The next four fields are means over these steps."""
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

    background_ongoing_requests: float = 0.0
    """The requests of the lane `background` among `ongoing_requests`."""


MOST_COUNTED_BYTES = 1 << 18
"""The bytes of one body that count at most: 32,768 tokens of 8 bytes. A body may have megabytes that are no
prompt, and must not start replicas with them."""


BYTES_PER_TOKEN = 4
"""The bytes of a request's body for each prompt token, assumed until engines have reported their counts: the
ratio of English text. A JSON body adds little to a long prompt."""


@quick_dataclass(frozen=True, slots=True)
class IngressSignals:
    """One ingress replica's signals about one model. Held requests are queued for a cold start."""

    arrivals_total: float = 0.0
    """Requests since the start of the replica, without those that turned out to be invalid."""
    arrived_bytes_total: float = 0.0
    """Bytes of the request bodies, at most `MOST_COUNTED_BYTES` of each. The policy estimates prompt tokens
    from them: only engines tokenize."""
    held_requests: float = 0.0
    held_bytes: float = 0.0
    oldest_held_s: float = 0.0
    newest_held_s: float = 0.0
    background_held_requests: float = 0.0
    """Of the lane `background`, which no other field includes."""
    background_held_bytes: float = 0.0


@quick_dataclass(frozen=True, slots=True)
class Reading(Generic[S]):
    """A report and its age in seconds."""

    signals: S
    age_s: float

    @property
    def fresh(self) -> bool:
        return 0.0 <= self.age_s <= STALE_AFTER_S


ENGINE_FIELDS = tuple(item.name for item in fields(EngineSignals))
INGRESS_FIELDS = tuple(item.name for item in fields(IngressSignals))


def ingress_key(deployment: str, name: str) -> str:
    """Return the name on the wire of an ingress signal about the model of an engine deployment."""
    return f"{deployment}:{name}"
