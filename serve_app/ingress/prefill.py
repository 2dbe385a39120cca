"""A request's prompt tokens, and how fast engines prefill them, as far as an ingress replica can tell."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.api.engine_client import GPU_OPERATIONS, EngineRequest

BYTES_PER_TOKEN = 4
"""English text has about four bytes per token. The ratio is not learned: the usage that would tell it is in
the answer, which the ingress does not parse, and a ratio wrong for all replicas alike changes few picks."""
MOST_PROMPT_TOKENS = 32_768
"""The bound on a prompt where a model's context length is not set. An image may be megabytes of a body and a
thousand tokens: unbounded, it would keep every other request away from its replica until it is answered."""
PREFILL_BUDGET_SHARE = 0.8
"""The share of the TTFT target that a request may be expected to wait for prefill, its own included. The last
fifth is for what the expectation does not know: bytes tell tokens to some 20 %, and the step under way has to
end."""
PACE_FADE = 0.99
"""The pace of prefill is a mean over about a hundred first tokens."""


def estimated_prompt_tokens(request: EngineRequest, most: int) -> int:
    """The prompt tokens that `request` asks an engine to prefill, at most `most`; 0 for tokenizing."""
    if request.operation not in GPU_OPERATIONS:
        return 0
    return min(len(request.body) // BYTES_PER_TOKEN, most)


@dataclass(slots=True)
class PrefillPace:
    """How fast the engines of a deployment prefill: sums over first tokens, which fade."""

    seconds: float = 0.0
    """From sending a request to its first token."""
    tokens: float = 0.0
    """Prompt tokens prefilled meanwhile."""
    prompts: float = 0.0
    prompt_tokens: float = 0.0
    """The requests' own prompt tokens."""

    def learn(self, seconds: float, tokens: float, prompt_tokens: int) -> None:
        """Count one first token, which came after `seconds`, in which the engine had `tokens` to prefill.

        Tokens are an estimate, and those found in a prefix cache, or that stand for an image's bytes, take no
        time: no first token may claim more than twice the pace known.
        """
        if self.seconds > 0.0:
            tokens = min(tokens, 2.0 * seconds * self.tokens / self.seconds)
        self.seconds = self.seconds * PACE_FADE + seconds
        self.tokens = self.tokens * PACE_FADE + tokens
        self.prompts = self.prompts * PACE_FADE + 1.0
        self.prompt_tokens = self.prompt_tokens * PACE_FADE + prompt_tokens
