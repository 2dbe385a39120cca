"""`/v1/batches`: create, read, list and cancel batches, as OpenAI's Batch API."""

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve_app.api.batch_access import BatchAccess, check_id, not_found, owner_of
from serve_app.api.body import read_body
from serve_app.api.body_memory import BodyMemory, BodyShare
from serve_app.api.browsers import check_content_type
from serve_app.api.dialect import JSON
from serve_app.api.errors import ApiError, invalid_field, invalid_value
from serve_app.api.files import expiry, page
from serve_app.api.request_head import head_of
from serve_app.batch.records import DAY_S, Batch, Endpoint, new_id
from serve_app.batch.store import StatusError
from serve_app.settings.settings_error import shown
from serve_app.settings.tree import HttpSettings

_MOST_BODY_BYTES = 1 << 16
_HOUR_S = 3600
_WINDOW = r"^[1-9][0-9]{0,2}h$"
_LONGEST_WINDOW_H = 168
_MetadataKey = Annotated[str, Field(max_length=64, pattern=r"^[^\x00]*$")]
_MetadataValue = Annotated[str, Field(max_length=512, pattern=r"^[^\x00]*$")]


class ExpiresAfter(BaseModel):
    """When result files expire."""

    anchor: Literal["created_at"]
    seconds: int


class CreateBatch(BaseModel):
    """The body of a request for a batch. Other fields are ignored, as OpenAI does."""

    model_config = ConfigDict(strict=True)

    input_file_id: str
    endpoint: Endpoint
    completion_window: Annotated[str, Field(pattern=_WINDOW, description="`24h`, or `1h` to `168h`.")]
    metadata: Annotated[dict[_MetadataKey, _MetadataValue], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


def batches_router(access: BatchAccess, http: HttpSettings, memory: BodyMemory) -> APIRouter:
    """Return the routes of batches. `memory` counts the bytes of bodies."""
    router = APIRouter(tags=["batches"])
    schema = {"required": True, "content": {JSON: {"schema": CreateBatch.model_json_schema()}}}

    @router.post("/v1/batches", summary="Create a batch", openapi_extra={"requestBody": schema})
    async def create(request: Request) -> dict[str, Any]:
        check_content_type(request.scope["headers"])
        share = BodyShare(memory, head_of(request).group)
        try:
            body = await read_body(request, _MOST_BODY_BYTES, http.body_timeout_s, share)
        finally:
            share.release()
        now = access.clock()
        batch = _batch(body, owner_of(request), now, access.store.limits.retention_days)
        try:
            await access.run(lambda: access.store.add_batch(batch, now))
        except StatusError as error:
            given = batch.input_file_id
            raise invalid_value("input_file_id", given, f"{error}.", "invalid_input_file") from None
        return batch.document()

    @router.get("/v1/batches", summary="Batches, the newest first", responses={404: {}})
    async def list_batches(
        request: Request,
        after: Annotated[str | None, Query(description="The id of the last batch of the last page.")] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> dict[str, Any]:
        owner = owner_of(request)
        if after is not None:
            check_id(after, "after")
        found = await access.run(lambda: access.store.batches(owner, after=after, limit=limit + 1))
        return page([batch.document() for batch in found], limit)

    async def find(request: Request, batch_id: str) -> Batch:
        check_id(batch_id, "batch_id")
        owner = owner_of(request)
        found = await access.run(lambda: access.store.batch(batch_id, owner))
        if found is None:
            raise not_found(batch_id, "batch_id")
        return found

    @router.get("/v1/batches/{batch_id}", summary="One batch")
    async def get_batch(request: Request, batch_id: str) -> dict[str, Any]:
        return (await find(request, batch_id)).document()

    @router.post("/v1/batches/{batch_id}/cancel", summary="Cancel a batch", responses={409: {}})
    async def cancel(request: Request, batch_id: str) -> dict[str, Any]:
        await find(request, batch_id)
        cancelled = await access.run(lambda: access.store.cancel(batch_id, access.clock()))
        batch = await find(request, batch_id)
        if not cancelled and batch.status not in ("cancelling", "cancelled"):
            raise ApiError(
                409,
                f"batch_id = {batch_id!r}: its status is {batch.status!r}; only a batch that is validating "
                "or in_progress can be cancelled.",
                param="batch_id",
                code="invalid_status",
                headers={"X-Should-Retry": "false"},
            )
        return batch.document()

    return router


def _batch(body: bytes, owner: str, now: float, retention_days: float) -> Batch:
    """Return the batch that a body asks for. Raises ApiError 400."""
    try:
        asked = CreateBatch.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(error) from None
    hours = int(asked.completion_window[:-1])
    if hours > _LONGEST_WINDOW_H:
        why = f"must be 1h to {_LONGEST_WINDOW_H}h."
        raise invalid_value("completion_window", asked.completion_window, why)
    if not re.fullmatch(r"file-[0-9a-f]{32}", asked.input_file_id):
        why = "no such file."
        raise invalid_value("input_file_id", asked.input_file_id[:100], why, "invalid_input_file")
    expires = None if asked.output_expires_after is None else asked.output_expires_after.model_dump()
    seconds = expiry(expires, "output_expires_after", retention_days)
    return Batch(
        new_id("batch"),
        owner,
        asked.endpoint,
        asked.input_file_id,
        asked.completion_window,
        "validating",
        int(now),
        int(now) + hours * _HOUR_S,
        output_expires_after=seconds or int(retention_days * DAY_S),
        metadata=asked.metadata,
    )


def _invalid(error: ValidationError) -> ApiError:
    """Return the first problem of a body."""
    first = error.errors(include_url=False)[0]
    param = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is not valid JSON: {first['msg']}.", code="invalid_json")
    if first["type"] == "missing":
        return invalid_field(param, "required.", "missing_field")
    message = f"{param or 'body'} = {shown(first['input'])}: {first['msg']}."
    return ApiError(400, message, param=param or None, code="invalid_value")
