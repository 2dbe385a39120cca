"""The endpoints of files and batches, for `tideserve batch`."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from serve_app.cli import CommandError, RefusedError
from serve_app.cli.formats import plain
from serve_app.cli.http_client import authorization, error_words, proxy_for

_TIMEOUT_S = 60.0
"""For a connection, and for each read."""
_CHUNK_BYTES = 1 << 20
_LONGEST = 1000
"""Characters of a server's error that are printed at most."""


class BatchApi:
    """A client of one server. All methods raise CommandError without a good answer."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["BatchApi"]:
        """Yield a client with the API key of the environment."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_S, sock_read=_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, headers=authorization()) as session:
            yield cls(session, url)

    async def upload(self, path: Path) -> str:
        """Upload an input file, in bounded memory, and return its id."""
        with path.open("rb") as file:
            form = aiohttp.FormData({"purpose": "batch"})
            form.add_field("file", file, filename=path.name, content_type="application/jsonl")
            return str((await self._json("POST", "/v1/files", data=form))["id"])

    async def create(self, batch: dict[str, Any]) -> Any:
        return await self._json("POST", "/v1/batches", json=batch)

    async def newest(self, limit: int) -> Any:
        return (await self._json("GET", f"/v1/batches?limit={limit}"))["data"]

    async def batch(self, batch_id: str) -> Any:
        return await self._json("GET", f"/v1/batches/{quote(batch_id, safe='')}")

    async def cancel(self, batch_id: str) -> Any:
        return await self._json("POST", f"/v1/batches/{quote(batch_id, safe='')}/cancel")

    async def save(self, file_id: str, write: Callable[[bytes], object]) -> None:
        """Write the content of a file, in bounded memory."""
        async with self._answer("GET", f"/v1/files/{quote(file_id, safe='')}/content") as answer:
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                write(chunk)

    async def _json(self, method: str, path: str, **more: Any) -> Any:
        async with self._answer(method, path, **more) as answer:
            return await answer.json()

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self._url}{path}"
        try:
            async with self._session.request(method, url, proxy=proxy_for(url), **more) as answer:
                if answer.status >= 300:
                    words = plain(error_words(await answer.read()), _LONGEST)
                    again = answer.status == 429 or answer.status >= 500
                    raise (CommandError if again else RefusedError)(
                        f"{self._url} answers {answer.status} {answer.reason}: {words}"
                    )
                yield answer
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
            raise CommandError(f"no answer from {self._url}: {error or type(error).__name__}") from None
