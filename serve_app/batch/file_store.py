"""Where the bytes of files are: a folder, or an object store, through obstore."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, ObjectStore, from_url

logger = logging.getLogger("ray.serve")

READ_BYTES = 1 << 20
_PART_BYTES = 5 << 20
"""Object stores take no smaller parts of an object, except the last one."""
UPLOAD_BYTES = 2 * _PART_BYTES
"""The memory that one upload takes."""

STORE_ERRORS = (BaseError, OSError)
_REFUSED = (PermissionError, PermissionDeniedError, UnauthenticatedError)
_MARKER = "store"


class DamagedError(Exception):
    """One object is missing or not as it was written, while its store works. The message names the object."""


class FileStore:
    """Objects by name. An object is written whole or not at all, and is never changed.

    Methods without `async` block. Reads raise DamagedError. All raise `STORE_ERRORS` if the store is away.

    Args:
        url: `file:///folder`, `s3://bucket/folder`, `gs://bucket/folder` or `az://container/folder`. A
            missing folder is made with the first use.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    @cached_property
    def _store(self) -> ObjectStore:
        return _open(self._url)

    def check(self, *, new: bool = False) -> None:
        """Raise OSError if the store lacks its marker, as an unmounted share does. A `new` one gets it."""
        try:
            obstore.head(self._store, _MARKER)
        except FileNotFoundError:
            if not new:
                raise OSError(
                    f"{self._url} is not the store of the files: it lacks the object {_MARKER!r}. "
                    "Mount the folder, or name the bucket, that has the files."
                ) from None
            self.write(_MARKER, [b""])

    async def upload(self, name: str, chunks: AsyncIterable[bytes]) -> None:
        """Write an object from chunks as they come, in bounded memory."""
        await obstore.put_async(
            self._store, name, chunks, use_multipart=True, chunk_size=_PART_BYTES, max_concurrency=1
        )
        await asyncio.to_thread(self._sync, name)

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write an object from chunks, in bounded memory. Return its bytes."""
        # Not `put`, within which the iterator of the chunks could not read from a store.
        writer = obstore.open_writer(self._store, name, buffer_size=_PART_BYTES, max_concurrency=1)
        size = sum(writer.write(chunk) for chunk in chunks)
        writer.close()
        self._sync(name)
        return size

    def whole(self, name: str) -> bytes:
        """Return all bytes of an object."""
        with self._object(name):
            return bytes(obstore.get(self._store, name).bytes())

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes of an object from `offset`."""
        return self.ranges(name, [(offset, length)])[0]

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return parts of an object, each given by its offset and length."""
        starts, lengths = [offset for offset, _ in ranges], [length for _, length in ranges]
        with self._object(name):
            parts = obstore.get_ranges(self._store, name, starts=starts, lengths=lengths)
        if [len(part) for part in parts] != lengths:
            raise DamagedError(f"the object {name} is damaged: it is too short")
        return [bytes(part) for part in parts]

    async def read_async(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes of an object from `offset`. Raises FileNotFoundError without the object."""
        try:
            part = bytes(await obstore.get_range_async(self._store, name, start=offset, length=length))
        except BaseError:  # the object ends before `offset`, or the store is away
            part = b""
        return part if len(part) == length else await asyncio.to_thread(self.read, name, offset, length)

    def chunks(self, name: str, size: int, chunk_bytes: int = READ_BYTES) -> Iterator[bytes]:
        """Yield the `size` bytes of an object."""
        for offset in range(0, size, chunk_bytes):
            yield self.read(name, offset, min(chunk_bytes, size - offset))

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder, in order."""
        return sorted(each["path"] for page in obstore.list(self._store, f"{folder}/") for each in page)

    def delete(self, names: Sequence[str]) -> set[str]:
        """Delete objects. Return those that cannot be deleted; the log has the reason.

        Missing objects are no error.
        """
        undeleted, mounted = set(), True
        try:
            obstore.delete(self._store, names)
        except STORE_ERRORS as error:  # which ends the deletion of the others
            try:
                self.check()
            except OSError:
                if not isinstance(error, FileNotFoundError):
                    raise
                mounted = False
            for name in names:
                try:
                    obstore.delete(self._store, name)
                except FileNotFoundError:
                    if not mounted:  # then the share still has it
                        undeleted.add(name)
                except STORE_ERRORS as error:
                    logger.warning("the object %s cannot be deleted: %s", name, error)
                    undeleted.add(name)
        return undeleted

    def delete_torn(self, before: float) -> None:
        """Delete what killed processes left of objects in a folder, older than `before`, Unix time.

        An object store needs a lifecycle rule for multipart uploads that were never completed.
        """
        if (folder := _local_folder(self._url)) is not None:
            for path in folder.glob("**/*#*"):  # the names under which obstore writes, until the end
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()

    @contextmanager
    def _object(self, name: str) -> Iterator[None]:
        """Tell a fault of this object from one of the store: then its marker cannot be read either."""
        try:
            yield
        except _REFUSED:
            raise
        except STORE_ERRORS as error:
            self.check()
            raise DamagedError(f"the object {name} is missing or damaged") from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # obstore's, for ranges behind an object's end
                raise
            raise DamagedError(f"the object {name} is damaged: it is too short") from error

    def _sync(self, name: str) -> None:
        """Make an object of a folder outlast a loss of power, before the database has its row."""
        if (folder := _local_folder(self._url)) is not None:
            for place in (Path(name), *Path(name).parents):
                descriptor = os.open(folder / place, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)


def _open(url: str) -> ObjectStore:
    folder = _local_folder(url)
    if folder is None:
        return from_url(url)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return LocalStore(folder, automatic_cleanup=True)  # of empty folders


def _local_folder(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
