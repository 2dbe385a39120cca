import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from httpx import Response
from obstore.exceptions import GenericError
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.batch_access import BatchAccess
from serve_app.batch.file_store import FileStore
from serve_app.batch.records import File
from serve_app.batch.store import BatchStore
from serve_app.settings.storage import BatchSettings
from tests.api.server import Server, error_of
from tests.api.slow_client import SlowClient, serving
from tests.stub_engine import LIMIT_S
from tests.timing import until

NOW = 1_800_000_000
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "tide"}}\n'
DAY_S = 86_400
MIB = 1 << 20
FORM = "multipart/form-data; boundary=b"


class BatchServer(Server):
    """The application with files and batches, at a time that tests set."""

    def __init__(self, folder: Path, files: FileStore | None = None, **limits: Any) -> None:
        self.now = float(NOW)
        keys = folder / "keys.yaml"
        keys.write_text(
            yaml.safe_dump({"keys": [{"name": name, "key": f"{name}-key"} for name in ("alice", "bob")]})
        )
        settings = BatchSettings(**({"max_file_bytes": 1 << 20} | limits))
        self.store = BatchStore(f"sqlite:///{folder}/batch.db", settings)
        self.files = files or FileStore(f"file://{folder}/files")
        access = BatchAccess(self.store, self.files, lambda: self.now)
        super().__init__(api_keys=ApiKeyFile(str(keys)), batches=access, max_body_memory_bytes=64 << 20)
        self.http.headers["Authorization"] = "Bearer alice-key"
        del self.http.headers["Content-Type"]

    def openai(self, key: str = "alice") -> AsyncOpenAI:
        return AsyncOpenAI(
            api_key=f"{key}-key", base_url="http://tide/v1", http_client=self.http, max_retries=0
        )

    async def post_form(self, *parts: tuple[str, str | bytes], **headers: str) -> Response:
        """Post a form by hand. The file has the name `in.jsonl`."""
        body = b"".join(
            b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
            % (
                name.encode(),
                b'; filename="in.jsonl"' if name == "file" else b"",
                value if isinstance(value, bytes) else value.encode(),
            )
            for name, value in parts
        )
        return await self.http.post(
            "/v1/files", content=body + b"--b--\r\n", headers={"Content-Type": FORM} | headers
        )


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BatchServer]:
    made = BatchServer(tmp_path)
    async with made.http:
        yield made


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


async def test_downloads_are_counted_until_they_are_read(server: BatchServer) -> None:
    memory, data = server.app.state.answers, LINE * (12 * MIB // len(LINE))
    server.store.limits = server.store.limits.model_copy(update={"max_file_bytes": 16 * MIB})
    file = (await server.post_form(("purpose", "batch"), ("file", data))).json()["id"]
    path = f"/v1/files/{file}/content"

    async with serving(server.app) as port:
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
        file = (await server.post_form(("purpose", "batch"), ("file", LINE))).json()["id"]
        head = await http.head(f"/v1/files/{file}/content")
        reads = store.reads
        whole = await http.get(f"/v1/files/{file}/content")

    assert (head.status_code, head.content, reads) == (200, b"", 0)
    for headers in (head.headers, whole.headers):
        headers.pop("x-request-id")
    assert head.headers == whole.headers


async def test_official_client_uploads_reads_lists_and_deletes(server: BatchServer) -> None:
    client = server.openai()

    file = await client.files.create(file=("dir/in.jsonl", LINE), purpose="batch")

    assert (file.object, file.bytes, file.filename, file.purpose) == ("file", len(LINE), "in.jsonl", "batch")
    assert (file.created_at, file.expires_at, file.status) == (NOW, NOW + 30 * DAY_S, "processed")
    assert await client.files.retrieve(file.id) == file
    assert (await client.files.content(file.id)).content == LINE
    assert [each async for each in client.files.list()] == [file]
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(NotFoundError, match="no such file"):
        await client.files.retrieve(file.id)
    assert server.files.names("files") == []


async def test_expiry_is_the_clients_choice(server: BatchServer) -> None:
    client = server.openai()
    after = {"anchor": "created_at", "seconds": 3600}
    file = await client.files.create(file=("in.jsonl", LINE), purpose="batch", expires_after=after)  # type: ignore[arg-type]

    assert file.expires_at == NOW + 3600
    server.now += 3600
    with pytest.raises(NotFoundError):
        await client.files.content(file.id)


async def test_large_file_comes_back_whole(server: BatchServer) -> None:
    data = bytes(range(256)) * 4096

    file = await server.openai().files.create(file=("in.jsonl", data), purpose="batch")

    assert (await server.openai().files.content(file.id)).content == data


async def test_pages_of_files_follow_one_another(server: BatchServer) -> None:
    client = server.openai()
    ids = [(await client.files.create(file=("in.jsonl", LINE), purpose="batch")).id for _ in range(5)]

    newest_first = [each.id async for each in client.files.list(limit=2)]
    oldest_first = [each.id async for each in client.files.list(limit=2, order="asc", purpose="batch")]

    assert sorted(newest_first) == sorted(ids)
    assert oldest_first == newest_first[::-1]
    assert [each async for each in client.files.list(purpose="batch_output")] == []
    assert [each async for each in client.files.list(purpose="assistants")] == []


async def test_file_of_another_key_does_not_exist(server: BatchServer) -> None:
    file = await server.openai().files.create(file=("in.jsonl", LINE), purpose="batch")
    bob = server.openai("bob")
    bob._client.headers["Authorization"] = "Bearer bob-key"

    for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(NotFoundError):
            await call(file.id)
    assert [each async for each in bob.files.list()] == []
    with pytest.raises(BadRequestError, match="no such file"):
        await bob.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")


@pytest.mark.parametrize(
    ("parts", "param", "code", "message"),
    [
        ([("file", LINE)], "purpose", "missing_field", "purpose: required; it must be 'batch'."),
        (
            [("file", LINE), ("purpose", "vision")],
            "purpose",
            "invalid_value",
            "purpose = 'vision': must be 'batch'.",
        ),
        (
            [("purpose", "vision"), ("file", LINE)],
            "purpose",
            "invalid_value",
            "purpose = 'vision': must be 'batch'.",
        ),
        ([("purpose", "batch")], "file", "missing_field", "file: required."),
        ([("purpose", "batch"), ("file", b"")], "file", "empty_file", "file: it is empty."),
        (
            [("purpose", "batch"), ("file", LINE), ("file", LINE)],
            "file",
            "invalid_value",
            "file: given twice; it must be given once.",
        ),
        (
            [("purpose", "batch"), ("expires_after[anchor]", "now"), ("file", LINE)],
            "expires_after.anchor",
            "invalid_value",
            "expires_after.anchor = 'now': must be 'created_at'.",
        ),
        (
            [
                ("purpose", "batch"),
                ("expires_after[anchor]", "created_at"),
                ("expires_after[seconds]", "3599"),
                ("file", LINE),
            ],
            "expires_after.seconds",
            "invalid_value",
            "expires_after.seconds = 3599: must be a whole number from 3600 to 2592000.",
        ),
        (
            [("purpose", "x" * 5000), ("file", LINE)],
            "purpose",
            "invalid_value",
            "purpose: longer than 4096 bytes.",
        ),
        (
            [(f"field{n}", "x") for n in range(33)],
            None,
            "invalid_form",
            "The body is not a form: it has more than 32 fields.",
        ),
    ],
)
async def test_bad_form_is_refused_and_leaves_nothing(
    server: BatchServer, parts: list[tuple[str, str | bytes]], param: str, code: str, message: str
) -> None:
    reply = await server.post_form(*parts)

    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["param"], error["code"], error["message"]) == (param, code, message)
    assert server.files.names("files") == []
    assert server.store.expire(NOW + 2 * DAY_S) == []


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
    server: BatchServer, content_type: str, body: bytes, status: int, code: str
) -> None:
    reply = await server.http.post("/v1/files", content=body, headers={"Content-Type": content_type})

    assert (reply.status_code, error_of(reply)["code"]) == (status, code)
    assert server.files.names("files") == []


async def test_too_large_file_is_refused_before_it_is_read(server: BatchServer) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body is read")
        yield b""

    headers = {"Content-Type": FORM, "Content-Length": str(300 << 20)}
    reply = await server.http.post("/v1/files", content=body(), headers=headers)

    assert (reply.status_code, error_of(reply)["code"]) == (413, "file_too_large")
    assert reply.headers["connection"] == "close"


async def test_too_large_file_without_a_length_is_refused(server: BatchServer) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        while True:
            read += 1
            yield b"x" * 65_536

    reply = await server.http.post("/v1/files", content=body(), headers={"Content-Type": FORM})

    assert (reply.status_code, error_of(reply)["code"]) == (413, "file_too_large")
    assert read < 40
    assert server.files.names("files") == []


async def test_limit_of_a_key_is_named(tmp_path: Path) -> None:
    server = BatchServer(tmp_path, max_files_per_key=1)
    await server.openai().files.create(file=("in.jsonl", LINE), purpose="batch")

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
    server: BatchServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    done, go = threading.Event(), threading.Event()
    work = getattr(server.store, step)

    def slow(file: File) -> None:
        work(file)
        done.set()
        assert go.wait(LIMIT_S)

    monkeypatch.setattr(server.store, step, slow)
    upload = asyncio.create_task(server.post_form(("purpose", "batch"), ("file", LINE)))
    assert await asyncio.to_thread(done.wait, LIMIT_S)
    upload.cancel()
    await asyncio.wait([upload], timeout=0.1)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await upload

    assert server.files.names("files") == []
    assert server.store.files("alice", NOW) == []
    assert server.store.expire(NOW + 2 * DAY_S) == []


async def test_file_whose_content_is_lost_is_not_found(server: BatchServer) -> None:
    file = (await server.post_form(("purpose", "batch"), ("file", LINE))).json()["id"]
    server.files.delete([f"files/{file}"])

    reply = await server.http.get(f"/v1/files/{file}/content")

    assert (reply.status_code, error_of(reply)["code"]) == (404, "file_not_found")


@pytest.mark.parametrize("content", [b"", LINE[:-1]])
async def test_damaged_content_is_named_and_not_retried(server: BatchServer, content: bytes) -> None:
    file = (await server.post_form(("purpose", "batch"), ("file", LINE))).json()["id"]
    server.files.write(f"files/{file}", [content])

    reply = await server.http.get(f"/v1/files/{file}/content")

    assert (reply.status_code, error_of(reply)["code"]) == (500, "file_damaged")
    assert reply.headers["x-should-retry"] == "false"


class FullFileStore(FileStore):
    """A fake: a disk without space."""

    async def upload(self, name: str, chunks: Any) -> None:
        async for _ in chunks:
            raise GenericError("Generic LocalFileSystem error: No space left on device (os error 28)")


async def test_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    kept = BatchServer(tmp_path)
    file = await kept.openai().files.create(file=("in.jsonl", LINE), purpose="batch")
    server = BatchServer(tmp_path, FullFileStore(f"file://{tmp_path}/files"))

    reply = await server.post_form(("purpose", "batch"), ("file", LINE))

    assert (reply.status_code, error_of(reply)["code"]) == (507, "storage_full")
    assert [each.id async for each in server.openai().files.list()] == [file.id]


async def test_share_that_is_not_mounted_takes_no_file(server: BatchServer, tmp_path: Path) -> None:
    await server.openai().files.create(file=("in.jsonl", LINE), purpose="batch")
    (tmp_path / "files").rename(tmp_path / "share")
    (tmp_path / "files").mkdir()

    reply = await server.post_form(("purpose", "batch"), ("file", LINE))

    assert (reply.status_code, error_of(reply)["code"]) == (503, "batch_store_unavailable")
    assert list((tmp_path / "files").iterdir()) == []


async def test_store_that_is_away_is_unavailable(tmp_path: Path) -> None:
    server = BatchServer(tmp_path)
    (tmp_path / "batch.db").mkdir()

    reply = await server.http.get("/v1/files")

    assert (reply.status_code, error_of(reply)["code"]) == (503, "batch_store_unavailable")
    assert reply.headers["retry-after"] == "10"


@pytest.mark.parametrize(
    "path", ["/v1/files/x", "/v1/files/file-%00", "/v1/files/batch_1/content", "/v1/batches/file-1"]
)
async def test_text_that_is_no_id_is_not_found(server: BatchServer, path: str) -> None:
    reply = await server.http.get(path)

    assert reply.status_code == 404
    assert error_of(reply)["code"] in ("file_not_found", "batch_not_found")


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "order=up"])
async def test_bad_query_is_refused_in_openais_shape(server: BatchServer, query: str) -> None:
    reply = await server.http.get(f"/v1/files?{query}")

    assert reply.status_code == 400
    assert error_of(reply)["param"] == query.partition("=")[0]


async def test_uploads_at_the_same_time_do_not_mix(server: BatchServer) -> None:
    data = [json.dumps({"n": number}).encode() * 5000 for number in range(3)]

    files = await asyncio.gather(
        *(server.openai().files.create(file=("in.jsonl", each), purpose="batch") for each in data)
    )

    assert [(await server.openai().files.content(file.id)).content for file in files] == data
