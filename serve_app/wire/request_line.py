"""One line of the request log, from which traffic can be replayed."""

import msgspec

COMPLETED = "completed"
ABANDONED = "abandoned"
"""Its client left before the end."""
FAILED = "failed"


class RequestLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that was in an engine, without the text of its prompt and answer.

    `arrived_at` comes first, so that sorting lines as text sorts them by arrival.
    """

    arrived_at: float
    """The arrival at the ingress, before any wait for a replica: Unix time in seconds, by the engine's
    clock."""
    model: str
    operation: str
    request_id: str
    input_tokens: int
    """Prompt tokens of all its sequences."""
    cached_tokens: int
    """The prompt tokens found in the prefix cache."""
    output_tokens: int
    """Generated tokens of all its sequences."""
    sequences: int
    """`n` times the number of prompts."""
    ttft_s: float | None
    """The time from arrival to the first token, as the replica saw it; None without a token."""
    e2e_s: float
    """The time from arrival to the end."""
    held_s: float
    """The part of both times for which the request was queued for a cold start."""
    status: int | None
    """The HTTP status; None if the client left before."""
    outcome: str
    """`completed`, `abandoned` or `failed`."""
    trace_id: str | None = None
    """The id of the client's trace: 32 hexadecimal digits. Left out if there is none."""
    expected_cached_tokens: int | None = None
    """The `cached_tokens` that the ingress expected at the pick. Left out without an expectation."""
    key: str = ""
    """The name of the client's API key. Left out on a server without keys."""
    lane: str = "standard"
    """The request's lane. Left out for the lane `standard`."""
    alias: str = ""
    """The name by which the client asked for the model. Left out for the model's own name."""
    adapter: str = ""
    """The name of the LoRA adapter. Left out for a request to the model itself."""
    lost_s: float = 0.0
    """The part of both times that lost replicas cost. Left out if it is 0."""
    variant: str = ""
    """The variant that served. Left out for a model without variants."""
