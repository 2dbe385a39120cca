"""A file of API keys, read again when it changes.

Only digests of keys are kept, and neither they nor a line of the file gets into a message or a log.
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from hashlib import sha256

from serve_app.settings.settings_error import SettingsError

logger = logging.getLogger("ray.serve")

SETTING = "http.api_keys_file"
_LOOK_S = 1.0
_LOOK_WAIT_S = 1.0
"""How long a request waits for a look at the file; a network file system may never answer."""
_MOST_BYTES = 1 << 20
_MOST_KEYS = 1000
"""Each is compared with what a client sends: 1,000 take 0.1 ms."""
_KEY = re.compile(rb"[\x21-\x7e]+")
"""What a header can carry: printable ASCII without spaces."""

_Signature = tuple[int, int, int, int, int]


class _UnusableError(Exception):
    """A file has no usable keys. The message tells why, without the file's path and content."""


class ApiKeyFile:
    """The keys in force.

    A file that vanishes, or becomes empty or invalid, leaves the previous keys in force: it may be in the
    middle of a change, and neither locking every client out nor letting every client in would be right.

    Args:
        path: A file with one key per line. Blank lines, and lines that begin with `#`, are skipped.
        clock: Seconds on a clock that never goes back.

    Raises:
        SettingsError: if the file has no usable keys to begin with.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self.clock = clock
        try:
            self.digests, self._signature = _read(path)
        except _UnusableError as error:
            raise SettingsError([f"{SETTING} = {path!r}: {error}"]) from None
        self._trouble = ""
        self._looking = False
        self.due_s = clock() + _LOOK_S
        """When to look at the file again."""

    async def refresh(self) -> None:
        """Look at the file in a thread: even a local disk may take its time, and streams are in this loop.

        Only one caller waits for a look, for a second at most.
        """
        if self._looking:
            return
        self.due_s = self.clock() + _LOOK_S
        self._looking = True
        looking = asyncio.get_running_loop().run_in_executor(None, self._look)
        await asyncio.wait([looking], timeout=_LOOK_WAIT_S)

    def _look(self) -> None:
        try:
            if _glance(self._path) == self._signature:
                self._trouble = ""
                return
            self.digests, self._signature = _read(self._path)
        except (_UnusableError, OSError) as error:
            self._say(_reason(error))
        else:
            self._trouble = ""
            logger.info(f"{SETTING} = {self._path!r}: has changed; keys in force: {len(self.digests)}")
        finally:
            self._looking = False

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            logger.error(f"{SETTING} = {self._path!r}: {trouble}; the previous keys stay in force")
        self._trouble = trouble


def _read(path: str) -> tuple[tuple[bytes, ...], _Signature]:
    """Return the digests of a file's keys, and the signature by which a change of it is noticed."""
    try:
        with open(path, "rb") as file:
            signature = _signature(os.fstat(file.fileno()))
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _UnusableError(_reason(error)) from None
    if len(content) > _MOST_BYTES:
        raise _UnusableError(f"has more than {_MOST_BYTES:,} bytes")
    keys: dict[bytes, int] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if not _KEY.fullmatch(key):
            raise _UnusableError(f"line {number} is not a key: printable ASCII without spaces, one per line")
        if key in keys:  # whoever deletes one of the two lines believes that the key is revoked
            raise _UnusableError(f"line {number} has the key of line {keys[key]} again; give each key once")
        keys[key] = number
    if not keys:
        raise _UnusableError("has no keys; it needs one per line")
    if len(keys) > _MOST_KEYS:
        raise _UnusableError(f"has {len(keys):,} keys; at most {_MOST_KEYS:,} are allowed")
    return tuple(sha256(key).digest() for key in keys), signature


def _glance(path: str) -> _Signature:
    return _signature(os.stat(path))


def _signature(found: os.stat_result) -> _Signature:
    """Differs after a change in place, and after a swap of the symbolic link that Kubernetes mounts."""
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
