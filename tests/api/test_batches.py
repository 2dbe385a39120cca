from dataclasses import asdict
from typing import Any

import pytest
from openai import ConflictError, NotFoundError
from openai.types import Batch

from serve_app.batch.records import Line, LineError, new_id
from serve_app.batch.tables import BATCHES
from tests.api.batch_server import NOW, BatchServer
from tests.api.server import error_of
from tests.api.test_batch_shapes import strictly


async def test_official_client_creates_polls_lists_and_cancels(batches: BatchServer) -> None:
    client, file = batches.openai(), (await batches.upload())["id"]

    batch = await client.batches.create(
        input_file_id=file, endpoint="/v1/completions", completion_window="24h", metadata={"job": "nightly"}
    )

    assert (batch.object, batch.status, batch.completion_window) == ("batch", "validating", "24h")
    assert (batch.created_at, batch.expires_at) == (NOW, NOW + 86_400)
    assert batch.metadata == {"job": "nightly"}
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"completed": 0, "failed": 0, "total": 0}
    batches.store.start(batch.id, "tide", [Line(1, "a", 0, 5)], NOW)
    begun = await client.batches.retrieve(batch.id)
    assert begun.request_counts is not None
    assert (begun.status, begun.model, begun.request_counts.total) == ("in_progress", "tide", 1)
    assert [each.id async for each in client.batches.list()] == [batch.id]
    with pytest.raises(ConflictError, match=f"the batch {batch.id} reads it"):
        await client.files.delete(file)
    cancelled = await client.batches.cancel(batch.id)
    assert (cancelled.status, cancelled.cancelling_at) == ("cancelling", NOW)
    assert (await client.batches.cancel(batch.id)).status == "cancelling"


async def test_failed_batch_shows_its_errors(batches: BatchServer) -> None:
    batch = await batches.create()
    errors = [LineError("empty_file", "It is empty."), LineError("x", "Y.", "url", 3)]
    batches.store.fail(batch["id"], errors, NOW)

    failed = strictly(Batch, (await batches.http.get(f"/v1/batches/{batch['id']}")).json())

    assert (failed.status, failed.model) == ("failed", None)
    assert failed.errors is not None
    assert [(each.code, each.line, each.param) for each in failed.errors.data or []] == [
        ("empty_file", None, None),
        ("x", 3, "url"),
    ]
    with pytest.raises(ConflictError, match="its status is 'failed'"):
        await batches.openai().batches.cancel(failed.id)


@pytest.mark.parametrize(("window", "seconds"), [("1h", 3600), ("36h", 129_600), ("168h", 604_800)])
async def test_window_of_whole_hours_is_accepted(batches: BatchServer, window: str, seconds: int) -> None:
    assert (await batches.create(completion_window=window))["expires_at"] == NOW + seconds


@pytest.mark.parametrize(
    ("name", "value", "within"),
    [
        *(("completion_window", each, "") for each in ("0h", "169h", "1d", 24, None)),
        *(("endpoint", each, "") for each in ("/v1/images", "")),
        *(("input_file_id", each, "") for each in ("file-1", "file-" + "0" * 32, "\0")),
        ("metadata", {str(n): "" for n in range(17)}, ""),
        ("metadata", {"k" * 65: "v"}, "." + "k" * 65),
        *(("metadata", {"k": each}, ".k") for each in ("v" * 513, 1, "\0")),
        ("output_expires_after", {"anchor": "now", "seconds": 3600}, ".anchor"),
        ("output_expires_after", {"anchor": "created_at", "seconds": 5}, ".seconds"),
    ],
)
async def test_bad_field_is_refused(batches: BatchServer, name: str, value: Any, within: str) -> None:
    reply = await batches.post_batch(**{name: value})

    assert reply.status_code == 400
    error, code = error_of(reply), "invalid_input_file" if name == "input_file_id" else "invalid_value"
    assert (error["param"], error["code"]) == (name + within, code)
    assert [each async for each in batches.openai().batches.list()] == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"[1", 400, "invalid_json"),
        (b"[]", 400, "invalid_value"),
        (b"{}", 400, "missing_field"),
        (b"\xff", 400, "invalid_json"),
        (b"[" * 50_000, 400, "invalid_json"),
        (b" " * 70_000, 413, "body_too_large"),
    ],
)
async def test_body_that_is_no_batch_is_refused(
    batches: BatchServer, body: bytes, status: int, code: str
) -> None:
    reply = await batches.http.post("/v1/batches", content=body, headers={"Content-Type": "application/json"})

    assert (reply.status_code, error_of(reply)["code"]) == (status, code)


async def test_deleted_input_file_is_refused(batches: BatchServer) -> None:
    file = (await batches.upload())["id"]
    await batches.openai().files.delete(file)

    error = error_of(await batches.post_batch(input_file_id=file))

    assert error["message"] == f"input_file_id = {file!r}: no such file."


async def test_batch_of_another_key_does_not_exist(batches: BatchServer) -> None:
    batch = (await batches.create())["id"]
    batches.http.headers["Authorization"] = "Bearer bob-key"
    bob = batches.openai("bob")

    for call in (bob.batches.retrieve, bob.batches.cancel):
        with pytest.raises(NotFoundError):
            await call(batch)
    assert [each async for each in bob.batches.list()] == []


async def test_batches_are_paged(batches: BatchServer) -> None:
    stored = batches.store.batch((await batches.create())["id"])
    assert stored is not None
    rows = [{**asdict(stored), "id": new_id("batch"), "application": "tideserve"} for _ in range(249)]
    with batches.store.begin() as connection:
        connection.execute(BATCHES.insert(), rows)

    found = [each.id async for each in batches.openai().batches.list(limit=100)]

    assert found == sorted((stored.id, *(row["id"] for row in rows)), reverse=True)
