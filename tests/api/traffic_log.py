"""Notes what the HTTP API tells of its requests."""

from typing import Any

from serve_app.api.engine_client import EngineRequest, Traffic
from serve_app.api.errors import ApiError


class TrafficLog(Traffic):
    """What was told, in order, and what its request said at that moment."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.requests: list[EngineRequest] = []
        self.seen: dict[str, tuple[Any, ...]] = {}

    def _note(self, name: str, request: EngineRequest, *details: Any) -> None:
        self.names.append(name)
        self.requests.append(request)
        self.seen[name] = details

    def opened(self, request: EngineRequest) -> None:
        self._note("opened", request, len(request.body))

    def first_byte(self, request: EngineRequest) -> None:
        self._note("first_byte", request, request.ttft_s, request.queued_s)

    def rejected(self, request: EngineRequest, error: ApiError) -> None:
        self._note("rejected", request, error)

    def closed(self, request: EngineRequest) -> None:
        self._note("closed", request, request.outcome, request.queued_s)
