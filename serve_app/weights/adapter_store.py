"""The files of LoRA adapters on one node: copied from their sources once, within a bound on their bytes.

vLLM reads an adapter's files again whenever it has unloaded the adapter, also within an engine step, where a
missing file would end the engine. So an engine reads only copies, and holds a lock on each copy that it may
read. Replicas of one node share the copies. The kernel releases the locks of a process that ends.
"""

import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

import aiohttp
import fsspec
import obstore.fsspec
import xxhash

from serve_app.settings.model_names import EMBEDDED_ADAPTER
from serve_app.weights import embedded_adapter_path

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
FILES = (CONFIG, WEIGHTS)
"""The files of an adapter, as PEFT writes them. Weights in pickles are not read."""
STALL_S = 30.0
"""A copy fails after so long without a block from its source. Blocks of fsspec have up to 6 MiB, so a source
with more than 0.2 MB/s is never silent for so long."""
_CHUNK_BYTES = 1 << 20
_NOT_NOW = "its source cannot be read now"

obstore.fsspec.register(("s3", "gs", "az"))


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


@dataclass(slots=True, eq=False)
class AdapterStore:
    """The copies of one model's adapters on this node. Its methods block; threads may call them."""

    root: Path
    """The folder of the copies. Other processes may use it too."""
    max_bytes: int
    """The most bytes of all copies, unfinished ones included."""

    def fetch(self, source: str) -> StoredAdapter:
        """Return the copy of the adapter at `source`, which is made if there is none.

        Raises:
            AdapterError: the source has no adapter, cannot be read, or is larger than the bound.
        """
        path = self.root / xxhash.xxh3_128_hexdigest(source.encode())
        try:
            while (stored := StoredAdapter.lock(path)) is None:
                _watch(partial(self._copy, source, path))
        except AdapterError:
            raise
        # The causes are for the log only, because they may have secrets of the source.
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            if _is_down(error):
                raise AdapterError(503, _NOT_NOW) from error
            raise AdapterError(404, f"its source has no {' or '.join(FILES)}, or may not be read") from error
        except (ImportError, ValueError) as error:  # fsspec knows no such scheme, or lacks its package
            raise AdapterError(400, "its source cannot be read") from error
        except Exception as error:
            raise AdapterError(503, _NOT_NOW) from error
        return stored

    def _copy(self, source: str, path: Path, note_progress: Callable[[], None]) -> None:
        unfinished = _hidden(path)
        with ExitStack() as ending:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                with _locked(self.root):
                    unfinished.mkdir()
                    ending.enter_context(_locked(unfinished))
            except OSError as error:
                raise AdapterError(503, "the folder of copies cannot be written") from error
            ending.callback(shutil.rmtree, unfinished, ignore_errors=True)
            self._read(source, unfinished, note_progress)
            with _locked(self.root):
                if not path.is_dir():  # no other process was faster
                    unfinished.rename(path)

    def _read(self, source: str, folder: Path, note_progress: Callable[[], None]) -> None:
        files, root = fsspec.core.url_to_fs(url(source), skip_instance_cache=True)
        for name in FILES:
            where = f"{root.rstrip('/')}/{name}"
            size = files.size(where)
            if size is None or size > self.max_bytes:
                most = f"the most are lora.max_bytes = {self.max_bytes}"
                raise AdapterError(400, f"{name} has {size or 'an unknown number of'} bytes, and {most}")
            with files.open(where, "rb") as opened, (folder / name).open("xb") as file:
                with _locked(self.root):
                    self._make_room(size)
                    file.truncate(size)  # it counts from now on
                while block := opened.read(_CHUNK_BYTES):
                    file.write(block)
                    note_progress()
                if file.tell() != size:
                    raise AdapterError(503, f"its source gave {file.tell()} of {size} bytes of {name}")

    def _make_room(self, needed: int) -> None:
        """Delete the copies used least recently until `needed` more bytes fit."""
        copies = []
        for path in self.root.iterdir():
            if path.name.startswith(".") and _delete_unless_locked(path):  # a killed process has left it
                continue
            with suppress(FileNotFoundError):  # an unfinished copy whose source failed
                size = sum(file.stat().st_size for file in path.iterdir())
                copies.append((path.stat().st_mtime, path, size))
        used = sum(size for _, _, size in copies)
        for _, path, size in sorted(copies):
            if used + needed > self.max_bytes and _delete_unless_locked(path):
                used -= size
        if used + needed > self.max_bytes:
            raise AdapterError(503, f"adapters in use take {used} of lora.max_bytes = {self.max_bytes}")


def _is_down(error: OSError) -> bool:
    """Return whether a source is down: fsspec has FileNotFoundError for all failures of an HTTP server."""
    cause = error.__cause__
    lost = isinstance(cause, aiohttp.ClientConnectionError | TimeoutError)
    return lost or (isinstance(cause, aiohttp.ClientResponseError) and cause.status >= 500)


def _watch(copy: Callable[[Callable[[], None]], None]) -> None:
    """Run `copy` in a thread, and leave it behind if it notes no progress for `STALL_S`.

    A client's own timeout bounds one try, and clients try again: those of the hub for 80 s, of object stores
    for 180 s, of HTTP for 600 s. Then the thread ends, and removes its unfinished files.

    Raises:
        AdapterError: 503, there is no progress.
        Exception: from `copy`.
    """
    steps: SimpleQueue[None] = SimpleQueue()
    ended: Future[None] = Future()

    def run() -> None:
        try:
            copy(lambda: steps.put(None))
            ended.set_result(None)
        except BaseException as error:
            ended.set_exception(error)
        steps.put(None)

    threading.Thread(target=run, name="adapter copy", daemon=True).start()
    try:
        while not ended.done():
            steps.get(timeout=STALL_S)
    except Empty:
        raise AdapterError(503, f"its source has given nothing for {STALL_S:g} s") from None
    ended.result()


@contextmanager
def _locked(folder: Path, wait: int = 0) -> Iterator[None]:
    """Keep other processes and threads out. Raises BlockingIOError if `wait` is LOCK_NB and one is in."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | wait)
        yield
    finally:
        os.close(descriptor)


def _hidden(path: Path) -> Path:
    """Return a new name for a folder that is not complete."""
    return path.with_name(f".{uuid.uuid4().hex}")


def url(source: str) -> str:
    """Return the folder or the URL, as fsspec knows it, of a source."""
    if source == EMBEDDED_ADAPTER:
        return str(embedded_adapter_path())
    if source.startswith("/") or "://" in source:
        return source
    return f"hf://{source.removeprefix('hf:')}"


def _delete_unless_locked(path: Path) -> bool:
    try:
        with _locked(path, fcntl.LOCK_NB):
            # A process that is killed now leaves no half of a copy under the name of a whole one.
            hidden = path.rename(_hidden(path))
            shutil.rmtree(hidden, ignore_errors=True)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True
