"""The autoscaling policy's decisions, the knobs, and the state of the fleet, over HTTP."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from serve_app.api.body import check_structure, decode_body, read_body
from serve_app.api.body_memory import BodyMemory, BodyShare
from serve_app.api.browsers import check_content_type
from serve_app.api.dialect import JSON
from serve_app.api.errors import ApiError
from serve_app.api.fleet_events import FleetEvents
from serve_app.api.request_head import head_of
from serve_app.settings.keys_file import ApiKey
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.settings_error import SettingsError
from serve_app.wire.versions import Share

_MOST_BYTES = 1 << 18
_LISTENER_BYTES = 1 << 20
"""The first event of 20 busy models has 611 KB, and a listener is dropped when 16 events are unread."""
_BODY_S = 20.0


@dataclass(frozen=True, slots=True)
class ChangedKnobs:
    """The answer to a change of knobs."""

    changes: list[str]
    """The changes of the values in force, in words."""
    in_force: bool
    """Whether the answering replica has the new values. If not, Ray is slow, or another change came."""


SetKnobs = Callable[[str, Mapping[str, Any], str], Awaitable[ChangedKnobs]]
"""Changes knobs of a scope, for a named sender. Raises SettingsError for knobs that are not valid."""


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


class KnobChange(msgspec.Struct, forbid_unknown_fields=True):
    """A change of knobs of a model, or of `ingress`. The value `default` removes an earlier change."""

    model: str
    knobs: dict[str, Any]


class ShareChange(msgspec.Struct, forbid_unknown_fields=True):
    """A change of the share of a model's version, and of the share of copies."""

    model: str
    share: Annotated[float, msgspec.Meta(ge=0, le=1)]
    shadow: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """null: as it is, and 0 with `share` 0."""
    version: str | None = None
    """The name of the version, to be sure; null for the only one."""


SetShare = Callable[[str, str | None, float, float | None, str], Awaitable[Share]]
"""Changes the share of a model's version; see `ShareChange`. The last argument names the sender."""

_decoder = msgspec.json.Decoder(KnobChange)
_share_decoder = msgspec.json.Decoder(ShareChange)
_SHARE = msgspec.json.schema_components((ShareChange,))[1]["ShareChange"]
_CHANGE = msgspec.json.schema_components((KnobChange,))[1]["KnobChange"]


def live_router(
    events: FleetEvents, set_knobs: SetKnobs, memory: BodyMemory, has_keys: bool, on_loopback: bool
) -> APIRouter:
    """Return the routes of the fleet's state and of changes of knobs. `memory` counts the bytes of bodies.

    With API keys (`has_keys`), only an admin key may change knobs. Without keys, everybody may if the server
    listens on a loopback address (`on_loopback`).
    """
    router = APIRouter(prefix="/autoscaling", tags=["operations"])

    schemas = {"model": Knobs.model_json_schema(), "ingress": IngressKnobs.model_json_schema()}

    def may_set(request: Request) -> bool:
        return request.state.key.admin if has_keys else on_loopback

    @router.get(
        "/events",
        summary="The state of the fleet, and its changes once a second",
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def follow(request: Request) -> Response:
        key: ApiKey | None = getattr(request.state, "key", None)
        request.state.count_answer(_LISTENER_BYTES)
        return await events.stream(request, key, {"knob_schemas": schemas, "may_set_knobs": may_set(request)})

    body = {"required": True, "content": {JSON: {"schema": _CHANGE}}}

    @router.post("/knobs", summary="Change knobs", openapi_extra={"requestBody": body})
    async def change(request: Request) -> ChangedKnobs:
        asked = decode_body(await _changing_body(request, memory, has_keys, may_set(request)), _decoder)
        sender = _sender(request, has_keys)
        try:
            return await set_knobs(asked.model, asked.knobs, sender)
        except SettingsError as error:
            raise ApiError(400, "; ".join(error.problems), param="knobs", code="invalid_value") from None

    return router


def canary_router(set_share: SetShare, memory: BodyMemory, has_keys: bool, on_loopback: bool) -> APIRouter:
    """Return the route that changes the share of a version. The arguments are those of `live_router`."""
    router = APIRouter(prefix="/autoscaling", tags=["operations"])
    body = {"required": True, "content": {JSON: {"schema": _SHARE}}}

    @router.put("/canary", summary="Change the share of a version", openapi_extra={"requestBody": body})
    async def change(request: Request) -> dict[str, Any]:
        allowed = request.state.key.admin if has_keys else on_loopback
        asked = decode_body(await _changing_body(request, memory, has_keys, allowed), _share_decoder)
        sender = _sender(request, has_keys)
        share = await set_share(asked.model, asked.version, asked.share, asked.shadow, sender)
        return {"share": share.share, "shadow": share.shadow}

    return router


async def _changing_body(request: Request, memory: BodyMemory, has_keys: bool, may_set: bool) -> bytes:
    """Return the body of a change. Raises ApiError 403 unless the sender `may_set` knobs."""
    if not may_set:
        allowed = "an API key with `admin: true`" if has_keys else "API keys, or a loopback address"
        raise ApiError(403, f"Changes of knobs need {allowed}.", code="knobs_not_allowed")
    check_content_type(request.scope["headers"])
    share = BodyShare(memory, head_of(request).group)
    try:
        body = await read_body(request, _MOST_BYTES, _BODY_S, share)
    finally:
        share.release()
    await check_structure(body)
    return body


def _sender(request: Request, has_keys: bool) -> str:
    return f"API key {request.state.key.name!r}" if has_keys else "a client without an API key"


def autoscaling_router(view: AutoscalingView) -> APIRouter:
    """Return the routes `/autoscaling/decisions` and `/autoscaling/knobs`."""
    router = APIRouter(prefix="/autoscaling", tags=["operations"])

    @router.get("/decisions", summary="The decisions and their reasons", responses={404: {}})
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
