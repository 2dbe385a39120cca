import asyncio
import gzip
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import GenericError
from openai import BadRequestError, NotFoundError

from serve_app.batch.file_store import FileStore
from serve_app.batch.records import File
from tests.api.batch_server import FORM, LINE, NOW, BatchServer
from tests.api.server import error_of
from tests.api.slow_client import SlowClient, serving
from tests.stub_engine import LIMIT_S
from tests.timing import until

DAY_S = 86_400
MIB = 1 << 20


async def test_a_packed_upload_may_unpack_to_the_bound(tmp_path: Path) -> None:
    line = LINE[:-1].ljust(4096) + b"\n"
    async with BatchServer(tmp_path, max_file_bytes=len(line) * 10).http as http:
        replies = []
        for lines in (10, 11, 1000):
            form = (
                b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
                b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n%b\r\n--b--\r\n' % (line * lines)
            )
            headers = {"Content-Type": FORM, "Content-Encoding": "gzip"}
            replies.append(await http.post("/v1/files", content=gzip.compress(form), headers=headers))

        content = await http.get(f"/v1/files/{replies[0].json()['id']}/content")

    assert [reply.status_code for reply in replies] == [200, 413, 413]
    assert content.content == line * 10


async def test_downloads_are_counted_until_they_are_read(batches: BatchServer) -> None:
    memory, data = batches.app.state.answers, LINE * (12 * MIB // len(LINE))
    batches.store.limits = batches.store.limits.model_copy(update={"max_file_bytes": 16 * MIB})
    file = (await batches.upload(data=data))["id"]
    path = f"/v1/files/{file}/content"

    async with serving(batches.app) as port:
        clients = [SlowClient(port, path, method="GET", key="alice-key") for _ in range(11)]
        statuses = [await client.status() for client in clients]
        used = dict(memory.by_group)
        content = await clients[0].rest()
        for client in clients:
            client.close()
        await until(lambda: memory.used_bytes == 0)

    assert statuses == [200] * 10 + [429]
    assert used == {"API key 'alice'": 30 * MIB}  # 3 MiB each, of half the memory
    assert content.endswith(b"\r\n\r\n" + data)


class CountingStore(FileStore):
    """A file store that counts the reads."""

    reads = 0

    async def read_async(self, name: str, offset: int, length: int) -> bytes:
        self.reads += 1
        return await super().read_async(name, offset, length)


async def test_head_of_a_content_reads_nothing(tmp_path: Path) -> None:
    store = CountingStore(f"file://{tmp_path}/files")
    async with (server := BatchServer(tmp_path, store)).http as http:
        file = (await server.upload())["id"]
        head = await http.head(f"/v1/files/{file}/content")
        reads = store.reads
        whole = await http.get(f"/v1/files/{file}/content")

    assert (head.status_code, head.content, reads) == (200, b"", 0)
    for headers in (head.headers, whole.headers):
        headers.pop("x-request-id")
    assert head.headers == whole.headers


async def test_official_client_uploads_reads_lists_and_deletes(batches: BatchServer) -> None:
    client = batches.openai()

    file = await client.files.create(file=("dir/in.jsonl", LINE), purpose="batch")

    assert (file.object, file.bytes, file.filename, file.purpose) == ("file", len(LINE), "in.jsonl", "batch")
    assert (file.created_at, file.expires_at, file.status) == (NOW, NOW + 30 * DAY_S, "processed")
    assert await client.files.retrieve(file.id) == file
    assert (await client.files.content(file.id)).content == LINE
    assert [each async for each in client.files.list()] == [file]
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(NotFoundError, match="no such file"):
        await client.files.retrieve(file.id)
    assert batches.files.names("files") == []


async def test_expiry_is_the_clients_choice(batches: BatchServer) -> None:
    client = batches.openai()
    after = {"anchor": "created_at", "seconds": 3600}
    file = await client.files.create(file=("in.jsonl", LINE), purpose="batch", expires_after=after)  # type: ignore[arg-type]

    assert file.expires_at == NOW + 3600
    batches.now += 3600
    with pytest.raises(NotFoundError):
        await client.files.content(file.id)


async def test_pages_of_files_follow_one_another(batches: BatchServer) -> None:
    files, ids = batches.openai().files, [(await batches.upload())["id"] for _ in range(5)]

    newest_first = [each.id async for each in files.list(limit=2)]
    oldest_first = [each.id async for each in files.list(limit=2, order="asc", purpose="batch")]

    assert sorted(newest_first) == sorted(ids)
    assert oldest_first == newest_first[::-1]
    for purpose in ("batch_output", "assistants"):
        assert [each async for each in files.list(purpose=purpose)] == []


async def test_file_of_another_key_does_not_exist(batches: BatchServer) -> None:
    file = (await batches.upload())["id"]
    bob = batches.openai("bob")
    batches.http.headers["Authorization"] = "Bearer bob-key"

    for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(NotFoundError):
            await call(file)
    assert [each async for each in bob.files.list()] == []
    with pytest.raises(BadRequestError, match="no such file"):
        await bob.batches.create(input_file_id=file, endpoint="/v1/completions", completion_window="24h")


BATCH, FILE = ("purpose", "batch"), ("file", LINE)
EXPIRES, IN = ("expires_after[anchor]", "created_at"), "expires_after"
VISION = "purpose = 'vision': must be 'batch'."


@pytest.mark.parametrize(
    ("parts", "param", "code", "message"),
    [
        ([FILE], "purpose", "missing_field", "purpose: required; it must be 'batch'."),
        ([FILE, ("purpose", "vision")], "purpose", "invalid_value", VISION),
        ([("purpose", "vision"), FILE], "purpose", "invalid_value", VISION),
        ([BATCH], "file", "missing_field", "file: required."),
        ([BATCH, ("file", b"")], "file", "empty_file", "file: it is empty."),
        ([BATCH, FILE, FILE], "file", "invalid_value", "file: given twice; it must be given once."),
        ([BATCH, ("expires_after[anchor]", "now"), FILE], f"{IN}.anchor", "invalid_value",
         f"{IN}.anchor = 'now': must be 'created_at'."),
        ([BATCH, EXPIRES, ("expires_after[seconds]", "3599"), FILE], f"{IN}.seconds", "invalid_value",
         f"{IN}.seconds = 3599: must be a whole number from 3600 to 2592000."),
        ([("purpose", "x" * 5000), FILE], "purpose", "invalid_value", "purpose: longer than 4096 bytes."),
        ([(f"field{n}", "x") for n in range(33)], None, "invalid_form",
         "The body is not a form: it has more than 32 fields."),
    ],
)  # fmt: skip
async def test_bad_form_is_refused_and_leaves_nothing(
    batches: BatchServer, parts: list[tuple[str, str | bytes]], param: str, code: str, message: str
) -> None:
    reply = await batches.post_form(*parts)

    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["param"], error["code"], error["message"]) == (param, code, message)
    assert batches.files.names("files") == []
    assert batches.store.expire(NOW + 2 * DAY_S) == []


@pytest.mark.parametrize(
    ("content_type", "body", "status", "code"),
    [
        ("application/json", b"{}", 415, "unsupported_media_type"),
        ("multipart/form-data", b"", 415, "unsupported_media_type"),
        (f"multipart/form-data; boundary={'b' * 300}", b"", 400, "invalid_form"),
        (FORM, b"nothing", 400, "invalid_form"),
        (FORM, b"", 400, "invalid_form"),
        (FORM, b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc', 400, "invalid_form"),
        (FORM, b"--b\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--b--\r\n", 400, "invalid_form"),
    ],
)
async def test_body_that_is_no_form_is_refused(
    batches: BatchServer, content_type: str, body: bytes, status: int, code: str
) -> None:
    reply = await batches.http.post("/v1/files", content=body, headers={"Content-Type": content_type})

    assert (reply.status_code, error_of(reply)["code"]) == (status, code)
    assert batches.files.names("files") == []


async def test_too_large_file_is_refused_before_it_is_read(batches: BatchServer) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body is read")
        yield b""

    headers = {"Content-Type": FORM, "Content-Length": str(300 << 20)}
    reply = await batches.http.post("/v1/files", content=body(), headers=headers)

    assert (reply.status_code, error_of(reply)["code"]) == (413, "file_too_large")
    assert reply.headers["connection"] == "close"


async def test_too_large_file_without_a_length_is_refused(batches: BatchServer) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        while True:
            read += 1
            yield b"x" * 65_536

    reply = await batches.http.post("/v1/files", content=body(), headers={"Content-Type": FORM})

    assert (reply.status_code, error_of(reply)["code"]) == (413, "file_too_large")
    assert read < 40
    assert batches.files.names("files") == []


async def test_limit_of_a_key_is_named(tmp_path: Path) -> None:
    server = BatchServer(tmp_path, max_files_per_key=1)
    await server.upload()

    reply = await server.post_form(("purpose", "batch"), ("file", LINE))

    error = error_of(reply)
    assert (reply.status_code, error["code"]) == (429, "limit_exceeded")
    assert (
        error["message"] == "there would be 2 files of this key; at most 1 are allowed (max_files_per_key)."
    )
    assert reply.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("declared", [True, False])
async def test_file_larger_than_all_files_of_a_key_is_413(tmp_path: Path, declared: bool) -> None:
    server = BatchServer(tmp_path, max_bytes_per_key=2048)
    large = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 200_000

    async def body() -> AsyncIterator[bytes]:
        yield large

    content = large if declared else body()
    reply = await server.http.post("/v1/files", content=content, headers={"Content-Type": FORM})

    assert (reply.status_code, error_of(reply)["code"]) == (413, "file_too_large")
    assert error_of(reply)["message"] == "The file is larger than 2048 bytes (batch.max_bytes_per_key)."
    assert (await server.post_form(("purpose", "batch"), ("file", LINE))).status_code == 200


@pytest.mark.parametrize("step", ["begin_file", "finish_file"])
async def test_client_that_leaves_meanwhile_leaves_nothing(
    batches: BatchServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    done, go = threading.Event(), threading.Event()
    work = getattr(batches.store, step)

    def slow(file: File) -> None:
        work(file)
        done.set()
        assert go.wait(LIMIT_S)

    monkeypatch.setattr(batches.store, step, slow)
    upload = asyncio.create_task(batches.post_form(("purpose", "batch"), ("file", LINE)))
    assert await asyncio.to_thread(done.wait, LIMIT_S)
    upload.cancel()
    await asyncio.wait([upload], timeout=0.1)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await upload

    assert batches.files.names("files") == []
    assert batches.store.files("alice", NOW) == []
    assert batches.store.expire(NOW + 2 * DAY_S) == []


async def test_file_whose_content_is_lost_is_not_found(batches: BatchServer) -> None:
    file = (await batches.upload())["id"]
    batches.files.delete([f"files/{file}"])

    reply = await batches.http.get(f"/v1/files/{file}/content")

    assert (reply.status_code, error_of(reply)["code"]) == (404, "file_not_found")


@pytest.mark.parametrize("content", [b"", LINE[:-1]])
async def test_damaged_content_is_named_and_not_retried(batches: BatchServer, content: bytes) -> None:
    file = (await batches.upload())["id"]
    batches.files.write(f"files/{file}", [content])

    reply = await batches.http.get(f"/v1/files/{file}/content")

    assert (reply.status_code, error_of(reply)["code"]) == (500, "file_damaged")
    assert reply.headers["x-should-retry"] == "false"


class FullFileStore(FileStore):
    """A fake: a disk without space."""

    async def upload(self, name: str, chunks: Any) -> None:
        async for _ in chunks:
            raise GenericError("Generic LocalFileSystem error: No space left on device (os error 28)")


async def test_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    file = await BatchServer(tmp_path).upload()
    server = BatchServer(tmp_path, FullFileStore(f"file://{tmp_path}/files"))

    reply = await server.post_form(("purpose", "batch"), ("file", LINE))

    assert (reply.status_code, error_of(reply)["code"]) == (507, "storage_full")
    assert [each.id async for each in server.openai().files.list()] == [file["id"]]


async def test_share_that_is_not_mounted_takes_no_file(batches: BatchServer, tmp_path: Path) -> None:
    await batches.upload()
    (tmp_path / "files").rename(tmp_path / "share")
    (tmp_path / "files").mkdir()

    reply = await batches.post_form(("purpose", "batch"), ("file", LINE))

    assert (reply.status_code, error_of(reply)["code"]) == (503, "batch_store_unavailable")
    assert list((tmp_path / "files").iterdir()) == []


async def test_store_that_is_away_is_unavailable(tmp_path: Path) -> None:
    server = BatchServer(tmp_path)
    (tmp_path / "batch.db").mkdir()

    reply = await server.http.get("/v1/files")

    assert (reply.status_code, error_of(reply)["code"]) == (503, "batch_store_unavailable")
    assert reply.headers["retry-after"] == "10"
