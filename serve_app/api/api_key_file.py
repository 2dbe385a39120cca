"""A file of API keys: one per line. Only digests of keys are kept, and no line of it gets into a message."""

import os
import re
from hashlib import sha256

_MOST_BYTES = 1 << 20
_MOST_KEYS = 1000
"""Each is compared with what a client sends: 1,000 take 0.1 ms."""
_KEY = re.compile(rb"[\x21-\x7e]+")
"""What a header can carry: printable ASCII without spaces."""

Signature = tuple[int, int, int, int, int]


class UnusableError(Exception):
    """A file has no usable keys. The message tells why, without the file's path and content."""


def read_keys(path: str) -> tuple[tuple[bytes, ...], Signature]:
    """Return the digests of a file's keys, and the signature by which a change of it is noticed."""
    try:
        with open(path, "rb") as file:
            signature = _signature(os.fstat(file.fileno()))
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UnusableError(reason(error)) from None
    if len(content) > _MOST_BYTES:
        raise UnusableError(f"has more than {_MOST_BYTES:,} bytes")
    keys: dict[bytes, None] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if not _KEY.fullmatch(key):
            raise UnusableError(f"line {number} is not a key: printable ASCII without spaces, one per line")
        keys[key] = None
    if not keys:
        raise UnusableError("has no keys; it needs one per line")
    if len(keys) > _MOST_KEYS:
        raise UnusableError(f"has {len(keys):,} keys; at most {_MOST_KEYS:,} are allowed")
    return tuple(sha256(key).digest() for key in keys), signature


def file_signature(path: str) -> Signature:
    """Return the file's signature now. Raises OSError."""
    return _signature(os.stat(path))


def _signature(found: os.stat_result) -> Signature:
    """Differs after a change in place, and after a swap of the symbolic link that Kubernetes mounts."""
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def reason(error: Exception) -> str:
    """Why a file cannot be used, without its path."""
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
