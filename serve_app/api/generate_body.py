"""The body of `/generate`, the plain token-by-token endpoint."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class GenerateRequest(BaseModel):
    """A prompt to continue, without a chat template."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    prompt: Annotated[str, Field(min_length=1, description="Text to continue.")]
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000, description="At most this many tokens.")] = 128
    temperature: Annotated[float, Field(ge=0, le=2, description="0 is greedy.")] = 0.7
    stream: Annotated[bool, Field(description="Send each token as a server-sent event.")] = False
    model: Annotated[str | None, Field(description="By default the first model served.")] = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, body: Any) -> Any:
        """Treat a null field as not given, as the OpenAI endpoints do."""
        if isinstance(body, dict):
            return {name: value for name, value in body.items() if value is not None}
        return body


class GenerateTimings(BaseModel):
    """Latency of one generation, in milliseconds."""

    cold_wait_ms: float
    """The part of `ttft_ms` for which the request was queued for a cold start."""
    lost_ms: float | None = None
    """The part of `ttft_ms` that lost replicas cost. Left out if it is 0."""
    ttft_ms: float
    inter_token_ms: float
    total_time_ms: float
    tokens_generated: int
    tokens_per_second: float


class GenerateResponse(BaseModel):
    """The whole generation, for `stream: false`."""

    model: str
    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    timings: GenerateTimings
