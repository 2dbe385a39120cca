"""What the HTTP API tells whoever counts requests."""

from __future__ import annotations

from typing import Protocol

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.api.outcome import Outcome


class Traffic(Protocol):
    """Told what becomes of the requests of one model. Times in seconds."""

    def opened(self, request: EngineRequest) -> None:
        """It has arrived, whole."""

    def admitted(self, request: EngineRequest) -> None:
        """It has been handed to an engine replica. Once a request."""

    def first_byte(self, request: EngineRequest, ttft_s: float, held_s: float) -> None:
        """The first event of its stream, or its whole answer, was sent `ttft_s` after it arrived.

        `held_s` of that it waited for a replica. Not told of failures.
        """

    def rejected(self, request: EngineRequest, error: ApiError) -> None:
        """It has been refused, with 429 or 503, for want of a replica that could take it."""

    def abandoned(self, request: EngineRequest) -> None:
        """Its client has left before the first byte of an answer; comments are none."""

    def closed(self, request: EngineRequest, held_s: float, outcome: Outcome) -> None:
        """Nothing more will be sent. It had waited for a replica for `held_s`. Once a request."""


class _Uncounted:
    """For an API that nobody watches."""

    def opened(self, request: EngineRequest) -> None: ...

    def admitted(self, request: EngineRequest) -> None: ...

    def first_byte(self, request: EngineRequest, ttft_s: float, held_s: float) -> None: ...

    def rejected(self, request: EngineRequest, error: ApiError) -> None: ...

    def abandoned(self, request: EngineRequest) -> None: ...

    def closed(self, request: EngineRequest, held_s: float, outcome: Outcome) -> None: ...


UNCOUNTED: Traffic = _Uncounted()
