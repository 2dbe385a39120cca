"""Liveness, readiness and metrics, seen from HTTP."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

State = Literal["up", "idle_at_zero", "loading", "failed"]


@dataclass(frozen=True, slots=True)
class ModelReadiness:
    """Whether requests for one model would be served, and if not, why not.

    `up` and `idle_at_zero` count as ready: the second wakes on a request.
    """

    model: str
    state: State
    replicas: int = 0
    target_replicas: int = 0
    phase: str | None = None
    phase_seconds: float | None = None
    reason: str | None = None
    startup_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether a request would be served."""
        return self.state in ("up", "idle_at_zero")


class Observer(Protocol):
    """What the HTTP API asks of whatever watches the engines."""

    async def readiness(self) -> list[ModelReadiness]:
        """Every model's readiness, in the order of the configuration."""
        ...

    async def metrics(self) -> bytes:
        """A Prometheus exposition of every replica's metrics."""
        ...


def health_router(observer: Observer) -> APIRouter:
    """`/health`, `/ready` and `/metrics`."""
    router = APIRouter(tags=["operations"])

    @router.get("/health", summary="Liveness: this process answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get(
        "/ready",
        summary="Readiness: a request would be served",
        responses={503: {"description": "No engine can serve yet; the body says why."}},
    )
    async def ready() -> JSONResponse:
        models = await observer.readiness()
        all_ready = all(model.ready for model in models)
        body: dict[str, Any] = {
            "ready": all_ready,
            "models": {model.model: _without_name(model) for model in models},
        }
        return JSONResponse(body, 200 if all_ready else 503)

    @router.get(
        "/metrics",
        summary="Every replica's metrics, for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        return Response(await observer.metrics(), media_type="text/plain; version=0.0.4")

    return router


def _without_name(model: ModelReadiness) -> dict[str, Any]:
    fields = asdict(model)
    del fields["model"]
    return fields
