"""What the autoscaling policy decided and why, and the knobs it goes by, seen from HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Query

from serve_app.api.errors import ApiError


class AutoscalingView(Protocol):
    """What the HTTP API asks of whatever keeps the decisions."""

    async def status(self) -> dict[str, Any] | None:
        """Where every model stands, as the policy said last; None while no policy has said anything."""
        ...

    async def decisions(self) -> list[dict[str, Any]]:
        """The decision records kept, oldest first."""
        ...

    def age_s(self) -> float | None:
        """How old what `status` and `decisions` tell is, in seconds; None while nothing is known."""
        ...

    def knobs(self) -> dict[str, Any]:
        """The knobs in force in this process, and what was rejected of those set."""
        ...


def autoscaling_router(view: AutoscalingView) -> APIRouter:
    """`/autoscaling/decisions` and `/autoscaling/knobs`."""
    router = APIRouter(prefix="/autoscaling", tags=["operations"])

    @router.get("/decisions", summary="What was decided, and why")
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
            "age_s": None if age_s is None else round(age_s, 3),
        }

    @router.get("/knobs", summary="The knobs in force")
    async def knobs() -> dict[str, Any]:
        return view.knobs()

    return router
