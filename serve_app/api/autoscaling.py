"""The autoscaling policy's decisions and the knobs in force, over HTTP."""

from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Query

from serve_app.api.errors import ApiError


class AutoscalingView(Protocol):
    """The HTTP API's source of decisions and knobs."""

    async def status(self) -> dict[str, Any] | None:
        """Return the state of every model, as the policy last wrote it; None if no policy has written."""
        ...

    async def decisions(self) -> list[dict[str, Any]]:
        """Return the stored decision records, oldest first."""
        ...

    def age_s(self) -> float | None:
        """Return the seconds since `status` and `decisions` were read; None before the first reading."""
        ...

    def knobs(self) -> dict[str, Any]:
        """Return the knobs in force in this process, and the problems of rejected knobs."""
        ...

    def adapters(self) -> dict[str, dict[str, int]]:
        """Return how many replicas have loaded each adapter, by model and adapter."""
        ...


def autoscaling_router(view: AutoscalingView) -> APIRouter:
    """Return the routes `/autoscaling/decisions` and `/autoscaling/knobs`."""
    router = APIRouter(prefix="/autoscaling", tags=["operations"])

    @router.get("/decisions", summary="The decisions and their reasons")
    async def decisions(
        model: Annotated[str | None, Query(description="Only this model's records.")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000, description="At most this many, the newest.")] = 100,
        after: Annotated[int, Query(ge=0, description="Only records with a larger `seq`.")] = 0,
    ) -> dict[str, Any]:
        if model is not None and model not in view.knobs()["models"]:
            raise ApiError(
                404, f"model = {model[:200]!r}: does not exist.", param="model", code="model_not_found"
            )
        records = [
            record
            for record in await view.decisions()
            if record["seq"] > after and model in (None, record["model"])
        ]
        autoscaler = await view.status()
        age_s = view.age_s()
        return {
            "knobs_rejected": view.knobs()["rejected"],
            "autoscaler": autoscaler,
            "decisions": records[-limit:],
            "adapters": view.adapters(),
            "age_s": None if age_s is None else round(age_s, 3),
        }

    @router.get("/knobs", summary="The knobs in force")
    async def knobs() -> dict[str, Any]:
        return view.knobs()

    return router
