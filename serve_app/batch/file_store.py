"""Where the bytes of files are: a folder, or an object store, through obstore."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

READ_BYTES = 1 << 20
_PART_BYTES = 5 << 20
"""Object stores take no smaller parts of an object, except the last one."""
UPLOAD_BYTES = 2 * _PART_BYTES
"""The memory that one upload takes."""

STORE_ERRORS = (BaseError, OSError)


class FileStore:
    """Objects by name. An object is written whole or not at all, and is never changed.

    All methods raise FileNotFoundError for a missing object, and `STORE_ERRORS` if the store does not answer.
    Methods without `async` block.

    Args:
        url: `file:///folder`, `s3://bucket/folder`, `gs://bucket/folder` or `az://container/folder`. A
            missing folder is made with the first use.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    @cached_property
    def _store(self) -> ObjectStore:
        return _open(self._url)

    async def upload(self, name: str, chunks: AsyncIterable[bytes]) -> None:
        """Write an object from chunks as they come, in bounded memory."""
        await obstore.put_async(
            self._store, name, chunks, use_multipart=True, chunk_size=_PART_BYTES, max_concurrency=1
        )

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write an object from chunks, in bounded memory."""
        # Not `put`, within which the iterator of the chunks could not read from a store.
        writer = obstore.open_writer(self._store, name, buffer_size=_PART_BYTES, max_concurrency=1)
        for chunk in chunks:
            writer.write(chunk)
        writer.close()

    def size(self, name: str) -> int:
        """Return the bytes of an object."""
        return obstore.head(self._store, name)["size"]

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes of an object from `offset`."""
        return bytes(obstore.get_range(self._store, name, start=offset, length=length))

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return parts of an object, each given by its offset and length."""
        starts, lengths = [offset for offset, _ in ranges], [length for _, length in ranges]
        return [bytes(part) for part in obstore.get_ranges(self._store, name, starts=starts, lengths=lengths)]

    async def read_async(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes of an object from `offset`."""
        return bytes(await obstore.get_range_async(self._store, name, start=offset, length=length))

    def chunks(self, name: str, size: int, chunk_bytes: int = READ_BYTES) -> Iterator[bytes]:
        """Yield the `size` bytes of an object."""
        for offset in range(0, size, chunk_bytes):
            yield self.read(name, offset, min(chunk_bytes, size - offset))

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder, in order."""
        return sorted(each["path"] for page in obstore.list(self._store, f"{folder}/") for each in page)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects. Missing objects are no error."""
        for name in names:
            with suppress(FileNotFoundError):
                obstore.delete(self._store, name)

    def delete_torn(self, before: float) -> None:
        """Delete what killed processes left of objects in a folder, older than `before`, Unix time.

        An object store needs a lifecycle rule for multipart uploads that were never completed.
        """
        if (folder := _local_folder(self._url)) is not None:
            for path in folder.glob("**/*#*"):  # the names under which obstore writes, until the end
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()


def _open(url: str) -> ObjectStore:
    folder = _local_folder(url)
    if folder is None:
        return from_url(url)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return LocalStore(folder, automatic_cleanup=True)  # of empty folders


def _local_folder(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
