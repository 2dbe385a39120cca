"""How many prompt tokens a request brings, as far as its bytes tell."""

from __future__ import annotations

from serve_app.api.engine_client import GPU_OPERATIONS, EngineRequest

BYTES_PER_TOKEN = 4
"""English text runs at about four bytes a token. Not learned: the usage that would tell is in the answer,
which the ingress does not parse, and a ratio off for all replicas alike changes few picks."""

MOST_PROMPT_TOKENS = 32_768
"""Where a model's context length is not set. An image may be megabytes of a body and a thousand tokens:
unbounded, it would keep every other request away from its replica until it is answered."""


def estimated_prompt_tokens(request: EngineRequest, most: int) -> int:
    """The prompt tokens that `request` asks an engine to prefill, at most `most`; 0 for tokenizing."""
    if request.operation not in GPU_OPERATIONS:
        return 0
    return min(len(request.body) // BYTES_PER_TOKEN, most)
