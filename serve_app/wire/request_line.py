"""One line of the request log: what is kept of a request, so that its traffic can be replayed."""

import msgspec

COMPLETED = "completed"
ABANDONED = "abandoned"
"""Its client left before the end."""
FAILED = "failed"


class RequestLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that was in an engine. No text of it, neither prompt nor answer.

    `arrived_at` comes first, so that sorting lines as text sorts them by arrival.
    """

    arrived_at: float
    """At the ingress, before any wait for a replica: Unix time in seconds, by the engine's clock."""
    model: str
    operation: str
    request_id: str
    input_tokens: int
    """Prompt tokens, of all its sequences."""
    cached_tokens: int
    """The prompt tokens found in the prefix cache."""
    output_tokens: int
    """Generated, of all its sequences."""
    sequences: int
    """`n` times the number of prompts."""
    ttft_s: float | None
    """From the arrival to the first token, as its replica saw it; None if there was none."""
    e2e_s: float
    """From the arrival to the end."""
    held_s: float
    """The part of both for which the request was queued for a cold start."""
    status: int | None
    """The HTTP status; None if the client left before it was known."""
    outcome: str
    """`completed`, `abandoned` or `failed`."""
    trace_id: str | None = None
    """The id of the client's trace: 32 hexadecimal digits. Left out if there is none."""
    expected_cached_tokens: int | None = None
    """`cached_tokens` as the ingress expected it at the pick. Left out if it expected nothing."""
