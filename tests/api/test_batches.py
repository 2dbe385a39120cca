import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from openai import ConflictError, NotFoundError

from serve_app.batch.records import Line, LineError, new_id
from serve_app.batch.tables import BATCHES
from tests.api.server import error_of
from tests.api.test_files import LINE, NOW, BatchServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BatchServer]:
    made = BatchServer(tmp_path)
    async with made.http:
        yield made


async def upload(server: BatchServer) -> str:
    return (await server.openai().files.create(file=("in.jsonl", LINE), purpose="batch")).id


async def create(server: BatchServer, **changed: Any) -> Any:
    asked: dict[str, Any] = {"endpoint": "/v1/completions", "completion_window": "24h"} | changed
    asked.setdefault("input_file_id", await upload(server))
    return await server.openai().batches.create(**asked)


async def test_official_client_creates_polls_lists_and_cancels(server: BatchServer) -> None:
    client = server.openai()

    batch = await create(server, metadata={"job": "nightly"})

    assert (batch.object, batch.status, batch.completion_window) == ("batch", "validating", "24h")
    assert (batch.created_at, batch.expires_at) == (NOW, NOW + 86_400)
    assert batch.metadata == {"job": "nightly"}
    assert batch.request_counts.model_dump() == {"completed": 0, "failed": 0, "total": 0}
    assert batch.usage.total_tokens == 0
    server.store.start(batch.id, "tide", [Line(1, "a", 0, 5)], NOW)
    begun = await client.batches.retrieve(batch.id)
    assert (begun.status, begun.model, begun.request_counts.total) == ("in_progress", "tide", 1)  # type: ignore[union-attr]
    assert [each.id async for each in client.batches.list()] == [batch.id]
    cancelled = await client.batches.cancel(batch.id)
    assert (cancelled.status, cancelled.cancelling_at) == ("cancelling", NOW)
    assert (await client.batches.cancel(batch.id)).status == "cancelling"


async def test_failed_batch_shows_its_errors(server: BatchServer) -> None:
    batch = await create(server)
    server.store.fail(
        batch.id, [LineError("empty_file", "It is empty."), LineError("x", "Y.", "url", 3)], NOW
    )

    failed = await server.openai().batches.retrieve(batch.id)

    assert failed.status == "failed"
    assert failed.errors is not None
    assert [(each.code, each.line, each.param) for each in failed.errors.data or []] == [
        ("empty_file", None, None),
        ("x", 3, "url"),
    ]
    with pytest.raises(ConflictError, match="its status is 'failed'"):
        await server.openai().batches.cancel(batch.id)


@pytest.mark.parametrize(("window", "seconds"), [("1h", 3600), ("36h", 129_600), ("168h", 604_800)])
async def test_window_of_whole_hours_is_accepted(server: BatchServer, window: str, seconds: int) -> None:
    batch = await create(server, completion_window=window)

    assert batch.expires_at == NOW + seconds


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"completion_window": "0h"}, "completion_window", "invalid_value"),
        ({"completion_window": "169h"}, "completion_window", "invalid_value"),
        ({"completion_window": "1d"}, "completion_window", "invalid_value"),
        ({"completion_window": 24}, "completion_window", "invalid_value"),
        ({"completion_window": None}, "completion_window", "invalid_value"),
        ({"endpoint": "/v1/images"}, "endpoint", "invalid_value"),
        ({"endpoint": ""}, "endpoint", "invalid_value"),
        ({"input_file_id": "file-1"}, "input_file_id", "invalid_input_file"),
        ({"input_file_id": "file-" + "0" * 32}, "input_file_id", "invalid_input_file"),
        ({"input_file_id": "\0"}, "input_file_id", "invalid_input_file"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 65, "invalid_value"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "invalid_value"),
        ({"metadata": {"k": 1}}, "metadata.k", "invalid_value"),
        ({"metadata": {"k": "\0"}}, "metadata.k", "invalid_value"),
        (
            {"output_expires_after": {"anchor": "now", "seconds": 3600}},
            "output_expires_after.anchor",
            "invalid_value",
        ),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 5}},
            "output_expires_after.seconds",
            "invalid_value",
        ),
    ],
)
async def test_bad_field_is_refused(
    server: BatchServer, changed: dict[str, Any], param: str, code: str
) -> None:
    asked = {"input_file_id": await upload(server), "endpoint": "/v1/completions", "completion_window": "24h"}

    reply = await server.http.post("/v1/batches", json=asked | changed)

    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["param"], error["code"]) == (param, code)
    assert [each async for each in server.openai().batches.list()] == []


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
    server: BatchServer, body: bytes, status: int, code: str
) -> None:
    reply = await server.http.post("/v1/batches", content=body, headers={"Content-Type": "application/json"})

    assert (reply.status_code, error_of(reply)["code"]) == (status, code)


async def test_deleted_input_file_is_refused(server: BatchServer) -> None:
    file_id = await upload(server)
    await server.openai().files.delete(file_id)

    asked = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    reply = await server.http.post("/v1/batches", json=asked)

    assert error_of(reply)["message"] == f"input_file_id = {file_id!r}: no such file."


async def test_file_of_an_open_batch_cannot_be_deleted(server: BatchServer) -> None:
    batch = await create(server)

    with pytest.raises(ConflictError, match=f"the batch {batch.id} reads it"):
        await server.openai().files.delete(batch.input_file_id)


async def test_batch_of_another_key_does_not_exist(server: BatchServer) -> None:
    batch = await create(server)
    server.http.headers["Authorization"] = "Bearer bob-key"
    bob = server.openai("bob")

    for call in (bob.batches.retrieve, bob.batches.cancel):
        with pytest.raises(NotFoundError):
            await call(batch.id)
    assert [each async for each in bob.batches.list()] == []


async def test_ten_thousand_batches_are_paged(server: BatchServer) -> None:
    batch = await create(server)
    stored = server.store.batch(batch.id)
    assert stored is not None
    rows = [{**asdict(stored), "id": new_id("batch"), "application": "tideserve"} for _ in range(9_999)]
    with server.store.begin() as connection:
        connection.execute(BATCHES.insert(), rows)

    slowest_s, seen, after = 0.0, [], {}
    while True:
        began = time.perf_counter()
        reply = (await server.http.get("/v1/batches", params={"limit": 100, **after})).json()
        slowest_s = max(slowest_s, time.perf_counter() - began)
        seen += [each["id"] for each in reply["data"]]
        after = {"after": reply["last_id"]}
        if not reply["has_more"]:
            break

    print(f"slowest page: {slowest_s * 1000:.1f} ms")
    assert seen == sorted((batch.id, *(row["id"] for row in rows)), reverse=True)
