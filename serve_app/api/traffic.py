"""What the HTTP API tells the counters of requests."""

from __future__ import annotations

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError


class Traffic:
    """Is told what becomes of the requests of one model. This class ignores it; `IngressCounters` counts."""

    def opened(self, request: EngineRequest) -> None:
        """The request has arrived with all of its body."""

    def first_byte(self, request: EngineRequest) -> None:
        """The first event of an answer, or a whole answer, has been sent: `request.ttft_s` is known."""

    def rejected(self, request: EngineRequest, error: ApiError) -> None:
        """The request was refused, with 429 or 503, because no replica or no memory could take it."""

    def closed(self, request: EngineRequest) -> None:
        """Nothing more will be sent: `request.outcome` is known. Called once for each request opened."""
