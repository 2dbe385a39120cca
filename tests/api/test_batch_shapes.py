"""Answers about files and batches have the fields and types of the official client, and no others."""

from typing import Any, TypeVar

import pytest
from openai import BaseModel
from openai.types import Batch, FileDeleted, FileObject
from openai.types.shared import ErrorObject

from serve_app.batch.records import Line
from serve_app.batch.tables import BATCHES
from tests.api.batch_server import NOW, BatchServer

_M = TypeVar("_M", bound=BaseModel)


def strictly(kind: type[_M], document: Any) -> _M:
    """Validate a document without conversions. Each field must be there, and no other."""
    found = kind.model_validate(document, strict=True)
    _check_fields(found)
    return found


def _check_fields(found: BaseModel) -> None:
    assert found.model_fields_set == type(found).model_fields.keys(), type(found)
    for value in dict(found).values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, BaseModel):
                _check_fields(each)


async def test_file_has_its_fields(batches: BatchServer) -> None:
    expiry = (("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "2592000"))
    made = strictly(FileObject, await batches.upload(*expiry))
    assert (made.expires_at, made.status) == (NOW + 2_592_000, "processed")

    assert strictly(FileObject, (await batches.http.get(f"/v1/files/{made.id}")).json()) == made
    deleted = (await batches.http.delete(f"/v1/files/{made.id}")).json()
    assert strictly(FileDeleted, deleted).deleted


@pytest.mark.parametrize(("kind", "shape"), [("files", FileObject), ("batches", Batch)])
async def test_page_has_its_fields(batches: BatchServer, kind: str, shape: type[FileObject | Batch]) -> None:
    empty = (await batches.http.get(f"/v1/{kind}")).json()
    make = batches.upload if kind == "files" else batches.create
    ids = sorted([(await make())["id"] for _ in range(3)], reverse=True)

    page = (await batches.http.get(f"/v1/{kind}?limit=2")).json()
    last = (await batches.http.get(f"/v1/{kind}?after={ids[1]}&limit=2")).json()

    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert [strictly(shape, each).id for each in page.pop("data")] == ids[:2]
    assert page == {"object": "list", "first_id": ids[0], "last_id": ids[1], "has_more": True}
    assert [each["id"] for each in last.pop("data")] == ids[2:]
    assert last == {"object": "list", "first_id": ids[2], "last_id": ids[2], "has_more": False}


@pytest.mark.parametrize("status", ["validating", "in_progress", "finalizing", "completed", "expired",
                                    "cancelling", "cancelled"])  # fmt: skip
async def test_batch_has_its_fields_in_each_status(batches: BatchServer, status: str) -> None:
    made = strictly(Batch, await batches.create(metadata={"job": "nightly"}))
    if status != "validating":
        batches.store.start(made.id, "tide", [Line(1, "a", 0, 5)], NOW)
        with batches.store.begin() as connection:
            connection.execute(BATCHES.update().values({"status": status, f"{status}_at": NOW}))

    found = strictly(Batch, (await batches.http.get(f"/v1/batches/{made.id}")).json())

    assert (found.status, found.metadata, found.errors) == (status, {"job": "nightly"}, None)
    assert (found.usage is not None, found.model) == (True, None if status == "validating" else "tide")


async def test_cancelled_batch_has_its_fields(batches: BatchServer) -> None:
    made = await batches.create()

    cancelled = strictly(Batch, (await batches.http.post(f"/v1/batches/{made['id']}/cancel")).json())

    assert (cancelled.status, cancelled.cancelling_at) == ("cancelling", NOW)


@pytest.mark.parametrize(
    ("method", "path", "status", "param"),
    [
        *(("GET", f"/v1/files/{each}", 404, None) for each in ("x", "file-1", "file-%00", "file-1/content")),
        *(("GET", f"/v1/files/{each}/content", 404, None) for each in ("batch_1", "file-1")),
        ("DELETE", "/v1/files/file-1", 404, None),
        *(("GET", f"/v1/files?limit={each}", 400, "limit") for each in ("0", "10001", "x")),
        ("GET", "/v1/files?order=up", 400, "order"),
        ("POST", "/v1/files", 415, None),
        *(("GET", f"/v1/batches/{each}", 404, None) for each in ("batch_1", "file-1")),
        ("POST", "/v1/batches/batch_1/cancel", 404, None),
        *(("GET", f"/v1/batches?limit={each}", 400, "limit") for each in ("0", "101")),
    ],
)
async def test_error_has_its_fields(
    batches: BatchServer, method: str, path: str, status: int, param: str | None
) -> None:
    reply = await batches.http.request(method, path)

    assert reply.status_code == status
    assert reply.json().keys() == {"error"}
    error = ErrorObject.model_validate(reply.json()["error"], strict=True)
    assert error.model_fields_set == {"message", "type", "param", "code"}
    assert error.type == "invalid_request_error"
    assert status == 404 or error.param == param
    if status == 404:
        assert error.code in ("file_not_found", "batch_not_found")
