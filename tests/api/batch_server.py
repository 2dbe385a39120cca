"""The application with files and batches, and its clients."""

from pathlib import Path
from typing import Any

import yaml
from httpx import Response
from openai import AsyncOpenAI

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.batch_access import BatchAccess
from serve_app.batch.file_store import FileStore
from serve_app.batch.store import BatchStore
from serve_app.settings.storage import BatchSettings
from tests.api.server import Server

NOW = 1_800_000_000
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "tide"}}\n'
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

    async def upload(self, *more: tuple[str, str], data: bytes = LINE) -> Any:
        """Upload a file, and return its document."""
        reply = await self.post_form(("purpose", "batch"), *more, ("file", data))
        assert reply.status_code == 200
        return reply.json()

    async def create(self, **changed: Any) -> Any:
        """Create a batch of a new file, and return its document."""
        return (await self.post_batch(**changed)).json()

    async def post_batch(self, **changed: Any) -> Response:
        asked = {"endpoint": "/v1/completions", "completion_window": "24h"} | changed
        if "input_file_id" not in asked:
            asked["input_file_id"] = (await self.upload())["id"]
        return await self.http.post("/v1/batches", json=asked)
