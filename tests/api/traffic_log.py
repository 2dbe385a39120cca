"""Notes what the HTTP API tells of its requests."""

from __future__ import annotations

from typing import Any

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.api.outcome import Outcome


class TrafficLog:
    """What was told, in order, and with what."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.requests: list[EngineRequest] = []
        self.seen: dict[str, tuple[Any, ...]] = {}

    def _note(self, name: str, request: EngineRequest, *details: Any) -> None:
        self.names.append(name)
        self.requests.append(request)
        self.seen[name] = details

    def opened(self, request: EngineRequest) -> None:
        self._note("opened", request)

    def admitted(self, request: EngineRequest) -> None:
        self._note("admitted", request)

    def first_byte(self, request: EngineRequest, ttft_s: float, held_s: float) -> None:
        self._note("first_byte", request, ttft_s, held_s)

    def rejected(self, request: EngineRequest, error: ApiError) -> None:
        self._note("rejected", request, error)

    def abandoned(self, request: EngineRequest) -> None:
        self._note("abandoned", request)

    def closed(self, request: EngineRequest, held_s: float, outcome: Outcome) -> None:
        self._note("closed", request, held_s, outcome)
