"""Answers about files and batches have the fields and types of the official client, and no others."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from openai import BaseModel
from openai.types import Batch, FileDeleted, FileObject
from openai.types.shared import ErrorObject

from serve_app.batch.records import Line, LineError
from serve_app.batch.tables import BATCHES
from tests.api.test_files import LINE, NOW, BatchServer

_M = TypeVar("_M", bound=BaseModel)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BatchServer]:
    made = BatchServer(tmp_path)
    async with made.http:
        yield made


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


async def upload(server: BatchServer, *more: tuple[str, str]) -> Any:
    reply = await server.post_form(("purpose", "batch"), *more, ("file", LINE))
    assert reply.status_code == 200
    return reply.json()


async def create(server: BatchServer, **more: Any) -> Any:
    file = await upload(server)
    asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"} | more
    return (await server.http.post("/v1/batches", json=asked)).json()


async def test_file_has_its_fields(server: BatchServer) -> None:
    expiry = (("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "2592000"))
    made = strictly(FileObject, await upload(server, *expiry))
    assert (made.expires_at, made.status) == (NOW + 2_592_000, "processed")

    assert strictly(FileObject, (await server.http.get(f"/v1/files/{made.id}")).json()) == made
    deleted = (await server.http.delete(f"/v1/files/{made.id}")).json()
    assert strictly(FileDeleted, deleted).deleted


async def test_page_of_files_has_its_fields(server: BatchServer) -> None:
    files = [(await upload(server))["id"] for _ in range(3)]
    files.sort(reverse=True)

    page = (await server.http.get("/v1/files?limit=2&purpose=batch")).json()
    last = (await server.http.get(f"/v1/files?after={files[1]}&limit=2")).json()
    upwards = (await server.http.get("/v1/files?order=asc")).json()

    assert [strictly(FileObject, each).id for each in page.pop("data")] == files[:2]
    assert page == {"object": "list", "first_id": files[0], "last_id": files[1], "has_more": True}
    assert [each["id"] for each in last.pop("data")] == files[2:]
    assert last == {"object": "list", "first_id": files[2], "last_id": files[2], "has_more": False}
    assert [each["id"] for each in upwards["data"]] == files[::-1]


@pytest.mark.parametrize(
    "status",
    [
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ],
)  # fmt: skip
async def test_batch_has_its_fields_in_each_status(server: BatchServer, status: str) -> None:
    made = strictly(Batch, await create(server, metadata={"job": "nightly"}))
    if status == "failed":
        server.store.fail(
            made.id, [LineError("empty_file", "It is empty."), LineError("x", "Y.", "url", 3)], NOW
        )
    elif status != "validating":
        server.store.start(made.id, "tide", [Line(1, "a", 0, 5)], NOW)
        with server.store.begin() as connection:
            connection.execute(BATCHES.update().values({"status": status, f"{status}_at": NOW}))

    found = strictly(Batch, (await server.http.get(f"/v1/batches/{made.id}")).json())

    assert (found.status, found.metadata) == (status, {"job": "nightly"})
    assert found.usage is not None
    assert (found.model, found.errors is None) == (
        None if status in ("validating", "failed") else "tide",
        status != "failed",
    )


async def test_cancelled_batch_has_its_fields(server: BatchServer) -> None:
    made = await create(server)

    cancelled = strictly(Batch, (await server.http.post(f"/v1/batches/{made['id']}/cancel")).json())

    assert (cancelled.status, cancelled.cancelling_at) == ("cancelling", NOW)


async def test_page_of_batches_has_its_fields(server: BatchServer) -> None:
    empty = (await server.http.get("/v1/batches")).json()
    batches = sorted([(await create(server))["id"] for _ in range(2)], reverse=True)

    page = (await server.http.get("/v1/batches?limit=1")).json()
    last = (await server.http.get(f"/v1/batches?limit=100&after={batches[0]}")).json()

    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert strictly(Batch, page.pop("data")[0]).id == batches[0]
    assert page == {"object": "list", "first_id": batches[0], "last_id": batches[0], "has_more": True}
    assert ([each["id"] for each in last["data"]], last["has_more"]) == (batches[1:], False)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/files/file-1", 404),
        ("DELETE", "/v1/files/file-1", 404),
        ("GET", "/v1/files/file-1/content", 404),
        ("GET", "/v1/files?limit=10001", 400),
        ("GET", "/v1/files?order=up", 400),
        ("POST", "/v1/files", 415),
        ("GET", "/v1/batches/batch_1", 404),
        ("POST", "/v1/batches/batch_1/cancel", 404),
        ("GET", "/v1/batches?limit=101", 400),
        ("GET", "/v1/batches?limit=0", 400),
    ],
)
async def test_error_has_its_fields(server: BatchServer, method: str, path: str, status: int) -> None:
    reply = await server.http.request(method, path)

    assert reply.status_code == status
    assert reply.json().keys() == {"error"}
    error = ErrorObject.model_validate(reply.json()["error"], strict=True)
    assert error.model_fields_set == {"message", "type", "param", "code"}
    assert error.type == "invalid_request_error"
