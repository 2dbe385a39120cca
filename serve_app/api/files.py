"""`/v1/files`: upload, list, read and delete files of batches, as OpenAI's Files API."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from serve_app.api.batch_access import FAILURES, BatchAccess, check_id, not_found, owner_of, store_failed
from serve_app.api.body_memory import BodyMemory, BodyShare
from serve_app.api.errors import ApiError, invalid_field, invalid_value
from serve_app.api.request_head import head_of
from serve_app.api.upload import FORM, Form
from serve_app.batch.file_store import READ_BYTES, UPLOAD_BYTES
from serve_app.batch.records import DAY_S, File, new_id
from serve_app.batch.store import StatusError
from serve_app.settings.tree import HttpSettings

_BYTES = "application/octet-stream"
_HOUR_S = 3600
_LONGEST_EXPIRY_S = 30 * DAY_S
_UPLOAD_SCHEMA = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": ["batch"]},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": _HOUR_S, "maximum": _LONGEST_EXPIRY_S},
    },
}


def files_router(access: BatchAccess, http: HttpSettings, memory: BodyMemory) -> APIRouter:
    """Return the routes of files. `memory` counts the memory of uploads."""
    router = APIRouter(tags=["batches"])
    body = {"required": True, "content": {FORM: {"schema": _UPLOAD_SCHEMA}}}

    @router.post("/v1/files", summary="Upload an input file", openapi_extra={"requestBody": body})
    async def upload(request: Request) -> dict[str, Any]:
        limits = access.store.limits
        most, setting = min(
            (limits.max_file_bytes, "batch.max_file_bytes"),
            (limits.max_bytes_per_key, "batch.max_bytes_per_key"),
        )
        form = Form(request, most, http.body_timeout_s, setting)
        share = BodyShare(memory, head_of(request).group)
        try:
            share.grow(min(UPLOAD_BYTES, memory.limit_bytes // 4))
            most = min(most, form.content.length or most)
            return (await _store(access, form, owner_of(request), most)).document()
        finally:
            share.release()

    @router.get("/v1/files", summary="Files, the newest first", responses={404: {}})
    async def list_files(
        request: Request,
        after: Annotated[str | None, Query(description="The id of the last file of the last page.")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
        purpose: Annotated[str | None, Query(max_length=100)] = None,
    ) -> dict[str, Any]:
        owner, now = owner_of(request), access.clock()
        if after is not None:
            check_id(after, "after")
        if purpose not in (None, "batch", "batch_output"):
            return page([], limit)
        found = await access.run(
            lambda: access.store.files(owner, now, after=after, limit=limit + 1, order=order, purpose=purpose)
        )
        return page([file.document() for file in found], limit)

    async def find(request: Request, file_id: str) -> File:
        check_id(file_id, "file_id")
        owner, now = owner_of(request), access.clock()
        found = await access.run(lambda: access.store.file(file_id, owner, now))
        if found is None:
            raise not_found(file_id, "file_id")
        return found

    @router.get("/v1/files/{file_id}", summary="One file")
    async def get_file(request: Request, file_id: str) -> dict[str, Any]:
        return (await find(request, file_id)).document()

    @router.get(
        "/v1/files/{file_id}/content",
        summary="The content of a file",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def get_content(request: Request, file_id: str) -> Response:
        file = await find(request, file_id)
        headers = {"Content-Length": str(file.bytes), "Content-Disposition": "attachment"}
        if request.state.head:
            return Response(headers=headers, media_type=_BYTES)
        request.state.count_answer(min(3 * READ_BYTES, file.bytes))  # the first, an unread one, and the next
        first = await _read(access, file, 0)  # while an error still has a status

        async def content() -> AsyncIterator[bytes]:
            yield first
            for offset in range(READ_BYTES, file.bytes, READ_BYTES):
                yield await _read(access, file, offset)

        return StreamingResponse(content(), headers=headers, media_type=_BYTES)

    @router.delete("/v1/files/{file_id}", summary="Delete a file", responses={409: {}})
    async def delete_file(request: Request, file_id: str) -> dict[str, Any]:
        file = await find(request, file_id)
        try:
            await access.run(lambda: _delete(access, file))
        except StatusError as error:
            headers = {"X-Should-Retry": "false"}
            message = f"file_id = {file_id!r}: {error}."
            raise ApiError(409, message, param="file_id", code="file_in_use", headers=headers) from None
        return {"id": file_id, "object": "file", "deleted": True}

    return router


def page(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return a page of OpenAI's lists. `found` has one entry more than `limit` if there are more pages."""
    data = found[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(found) > limit,
    }


def expiry(given: Any, param: str, retention_days: float) -> int | None:
    """Return the seconds of an `expires_after`; None if it is not given.

    Raises:
        ApiError: 400.
    """
    if given is None:
        return None
    most = min(_LONGEST_EXPIRY_S, int(retention_days * DAY_S))
    anchor, seconds = given.get("anchor"), given.get("seconds")
    if anchor != "created_at":
        raise invalid_value(f"{param}.anchor", anchor, "must be 'created_at'.")
    whole = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not whole or not _HOUR_S <= seconds <= most:
        why = f"must be a whole number from {_HOUR_S} to {most}."
        raise invalid_value(f"{param}.seconds", seconds, why)
    return int(seconds)


async def _store(access: BatchAccess, form: Form, owner: str, most: int) -> File:
    """Read a form, and store its file of at most so many bytes. After a failure nothing is left of it."""
    now = int(access.clock())
    file = File(new_id("file"), owner, "batch", "", most, now)
    try:
        new = await access.run(lambda: access.store.begin_file(file))
        await access.run(lambda: access.files.check(new=new))
    except BaseException:
        await access.run(lambda: access.store.forget_files([file.id]))
        raise
    try:
        try:
            await access.files.upload(file.object, _checked(form))
        except FAILURES as error:
            raise store_failed(error) from None
        seconds = _check_form(form, access.store.limits.retention_days)
        file = replace(file, filename=form.filename or "", bytes=form.size, expires_at=now + seconds)
        await access.run(lambda: access.store.finish_file(file))
    except BaseException:
        await access.run(lambda: _delete(access, file))
        raise
    return file


async def _checked(form: Form) -> AsyncIterator[bytes]:
    """Yield the chunks of a form's file. A wrong purpose that comes before the file ends the upload."""
    async for chunk in form.chunks():
        if "purpose" in form.fields:
            _check_purpose(form)
        yield chunk


def _check_form(form: Form, retention_days: float) -> int:
    """Return the seconds until the file of a form expires. Raises ApiError 400."""
    _check_purpose(form)
    if form.filename is None:
        raise invalid_field("file", "required.", "missing_field")
    if not form.size:
        raise invalid_field("file", "it is empty.", "empty_file")
    given = {
        name: form.fields[f"expires_after[{name}]"]
        for name in ("anchor", "seconds")
        if f"expires_after[{name}]" in form.fields
    }
    seconds = given.get("seconds", "")
    if seconds.isascii() and seconds.isdigit() and len(seconds) < 10:
        given["seconds"] = int(seconds)  # type: ignore[assignment]  # as JSON would have it
    return expiry(given or None, "expires_after", retention_days) or int(retention_days * DAY_S)


def _check_purpose(form: Form) -> None:
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise invalid_field("purpose", "required; it must be 'batch'.", "missing_field")
    if purpose != "batch":
        raise invalid_value("purpose", purpose, "must be 'batch'.")


async def _read(access: BatchAccess, file: File, offset: int) -> bytes:
    length = min(READ_BYTES, file.bytes - offset)
    if not length:
        return b""
    try:
        return await access.files.read_async(file.object, offset, length)
    except FileNotFoundError:
        raise not_found(file.id, "file_id") from None
    except FAILURES as error:
        raise store_failed(error) from None


def _delete(access: BatchAccess, file: File) -> None:
    access.store.hide_file(file.id)
    _discard(access, file)


def _discard(access: BatchAccess, file: File) -> None:
    if not access.files.delete([file.object]):  # else the runner tries again
        access.store.forget_files([file.id])
