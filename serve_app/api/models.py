"""The models that an application serves over HTTP."""

from dataclasses import dataclass, field

from serve_app.api.engine_client import EngineClient, EngineRequest
from serve_app.api.errors import ApiError


class Traffic:
    """Is told what becomes of the requests of one model. This class ignores it; `IngressCounters` counts."""

    def opened(self, request: EngineRequest) -> None:
        """The request has arrived with all of its body."""

    def first_byte(self, request: EngineRequest) -> None:
        """The first event of an answer, or a whole answer, has been sent: `request.state.ttft_s` is known."""

    def rejected(self, request: EngineRequest, error: ApiError) -> None:
        """The request was refused, with 429 or 503, because no replica or no memory could take it."""

    def closed(self, request: EngineRequest) -> None:
        """Nothing more will be sent: `request.state.outcome` is known. Called once for each request."""


@dataclass(frozen=True, slots=True)
class ApiModel:
    """One model: its public name, and when this process began to serve it (Unix time)."""

    name: str
    created: int
    engine: EngineClient
    """Runs its requests."""
    max_model_len: int | None = None
    traffic: Traffic = field(default_factory=Traffic)
    """Is told what becomes of its requests."""

    def card(self) -> dict[str, str | int | None]:
        """The model's entry in `/v1/models`."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "tideserve",
            "max_model_len": self.max_model_len,
        }
