"""The files of LoRA adapters on one node: copied from their sources once, within a bound on their bytes.

vLLM reads an adapter's files again whenever it has unloaded the adapter, also within an engine step, where a
missing file would end the engine. So an engine reads only copies, and holds a lock on each copy that it may
read. Replicas of one node share the copies. The kernel releases the locks of a process that ends.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import fsspec
import xxhash

from serve_app.settings.adapters import EMBEDDED_ADAPTER
from serve_app.weights import embedded_adapter_path

WEIGHTS = "adapter_model.safetensors"
FILES = ("adapter_config.json", WEIGHTS)
"""The files of an adapter, as PEFT writes them. Weights in pickles are not read."""
_CHUNK_BYTES = 1 << 20


class AdapterError(Exception):
    """An adapter cannot be used.

    Args:
        status: 404 if its files are missing, 400 if they are invalid, 503 if another try may succeed.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def adapter_folder(model: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of the copies of a model's adapters on this node."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "tideserve" / "adapters" / xxhash.xxh3_64_hexdigest(model.encode())


@dataclass(slots=True, eq=False)
class StoredAdapter:
    """A copy that is not deleted before `close`."""

    path: Path
    _descriptor: int = field(repr=False)

    @classmethod
    def lock(cls, path: Path) -> Self | None:
        """Return the copy at `path`; None if there is none."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # It may have been deleted before the lock.
        if not path.is_dir() or os.fstat(descriptor).st_ino != path.stat().st_ino:
            os.close(descriptor)
            return None
        os.utime(descriptor)
        return cls(path, descriptor)

    def close(self) -> None:
        """Allow the deletion of the copy."""
        os.close(self._descriptor)


class AdapterStore:
    """The copies of one model's adapters on this node. Its methods block; threads may call them.

    Args:
        root: The folder of the copies. Other processes may use it too.
        max_bytes: The most bytes of all copies.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes

    def fetch(self, source: str) -> StoredAdapter:
        """Return the copy of the adapter at `source`, which is made if there is none.

        Raises:
            AdapterError: the source has no adapter, cannot be read, or is larger than the bound.
        """
        path = self._root / xxhash.xxh3_128_hexdigest(source.encode())
        where = f"source = {source!r}"
        try:
            while (stored := StoredAdapter.lock(path)) is None:
                self._copy(source, path)
        except AdapterError as error:
            raise AdapterError(error.status, f"{where}: {error}") from None
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = Path(error.filename).name if error.filename else " or ".join(FILES)
            raise AdapterError(404, f"{where}: has no {missing}") from None
        except PermissionError:
            raise AdapterError(404, f"{where}: may not be read") from None
        except (ImportError, ValueError) as error:  # fsspec knows no such scheme, or lacks its package
            raise AdapterError(400, f"{where}: cannot be read: {error}") from None
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise AdapterError(503, f"{where}: cannot be read now: {why}") from error
        return stored

    def _copy(self, source: str, path: Path) -> None:
        unfinished = self._root / f".{uuid.uuid4().hex}"
        try:
            unfinished.mkdir(parents=True)
        except OSError as error:
            raise AdapterError(503, f"{self._root} cannot be written: {error.strerror}") from None
        descriptor = os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._make_room(self._read(source, unfinished))
            try:
                unfinished.rename(path)
            except OSError:  # another process was faster
                if not path.is_dir():
                    raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            os.close(descriptor)

    def _read(self, source: str, folder: Path) -> int:
        """Copy the files of `source` to `folder`. Returns their bytes."""
        files, root = fsspec.core.url_to_fs(_url(source), skip_instance_cache=True, use_listings_cache=False)
        copied = 0
        for name in FILES:
            with files.open(f"{root.rstrip('/')}/{name}", "rb") as opened, (folder / name).open("xb") as file:
                while chunk := opened.read(_CHUNK_BYTES):
                    copied += len(chunk)
                    if copied > self._max_bytes:
                        most = f"lora.max_bytes = {self._max_bytes}"
                        raise AdapterError(400, f"has {copied} bytes or more, and the most are {most}")
                    file.write(chunk)
        return copied

    def _make_room(self, needed: int) -> None:
        """Delete the copies used least recently until `needed` more bytes fit."""
        copies = []
        for path in self._root.iterdir():
            if path.name.startswith("."):
                _delete_unless_locked(path)  # a killed process may have left it
                continue
            with suppress(FileNotFoundError):  # another process has deleted it
                size = sum(file.stat().st_size for file in path.glob("*"))
                copies.append((path.stat().st_mtime, path, size))
        used = sum(size for _, _, size in copies)
        for _, path, size in sorted(copies):
            if used + needed > self._max_bytes and _delete_unless_locked(path):
                used -= size
        if used + needed > self._max_bytes:
            raise AdapterError(503, f"adapters in use take {used} of lora.max_bytes = {self._max_bytes}")


def _url(source: str) -> str:
    if source == EMBEDDED_ADAPTER:
        return str(embedded_adapter_path())
    if source.startswith("/") or "://" in source:
        return source
    return f"hf://{source.removeprefix('hf:')}"


def _delete_unless_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
