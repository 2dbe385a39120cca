"""Require an API key, if `http.api_keys_file` names a file of keys.

The file is read again when it changes. Only digests of keys are kept. No message and no log contains a digest
or a line of the file.
"""

import asyncio
import hmac
import logging
import os
import re
import time
from collections.abc import Callable
from hashlib import sha256

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.api.engine_client import JSON
from serve_app.api.errors import ApiError
from serve_app.api.middleware import route_path
from serve_app.settings.settings_error import SettingsError

logger = logging.getLogger("ray.serve")

OPEN_PATHS = frozenset(("/health", "/ready", "/metrics"))
"""Probes and scrapes have no key."""
_POLICY_VIOLATION = 1008
"""RFC 6455, 7.4.1."""
_CACHE_SALT = b"tideserve: salt of the prefix cache"
SETTING = "http.api_keys_file"
_LOOK_S = 1.0
_LOOK_WAIT_S = 1.0
"""How long a request waits for a check of the file. A network file system may never answer."""
_MOST_BYTES = 1 << 20
_MOST_KEYS = 1000
"""Each request is compared with every key: 1,000 keys take 0.1 ms."""
_KEY = re.compile(rb"[\x21-\x7e]+")
"""Printable ASCII without spaces, which a header can carry."""

_Signature = tuple[int, int, int, int, int]


class _UnusableError(Exception):
    """A file has no usable keys. The message says why, without the file's path and content."""


class ApiKeyFile:
    """The keys in force.

    If the file vanishes, or becomes empty or invalid, the previous keys stay in force. The file may be in the
    middle of a change, and such a change must neither lock all clients out nor let all clients in.

    Args:
        path: A file with one key per line. Blank lines, and lines that begin with `#`, are skipped.
        clock: Seconds on a clock that never goes back.

    Raises:
        SettingsError: the file has no usable keys at the start.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        try:
            self._digests, self._signature = _read(path)
        except _UnusableError as error:
            raise SettingsError([f"{SETTING} = {path!r}: {error}"]) from None
        self._trouble = ""
        self._looking = False
        self._due_s = clock() + _LOOK_S
        """When the file is to be checked again."""

    async def has(self, key: bytes) -> bool:
        """Return whether a client may use `key`.

        Once a second, a caller waits for a check of the file, for at most a second. The check is made in a
        thread, because even a local disk may be slow and this loop serves streams.
        """
        if self._clock() >= self._due_s and not self._looking:
            self._due_s = self._clock() + _LOOK_S
            self._looking = True
            looking = asyncio.get_running_loop().run_in_executor(None, self._look)
            await asyncio.wait([looking], timeout=_LOOK_WAIT_S)
        given = sha256(key).digest()
        found = 0
        for digest in self._digests:  # all of them, so that the time does not show which key matched
            found |= hmac.compare_digest(digest, given)
        return bool(found)

    def _look(self) -> None:
        try:
            if _signature(os.stat(self._path)) == self._signature:
                self._trouble = ""
                return
            self._digests, self._signature = _read(self._path)
        except (_UnusableError, OSError) as error:
            self._say(_reason(error))
        else:
            self._trouble = ""
            logger.info(f"{SETTING} = {self._path!r}: has changed; keys in force: {len(self._digests)}")
        finally:
            self._looking = False

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            logger.error(f"{SETTING} = {self._path!r}: {trouble}; the previous keys stay in force")
        self._trouble = trouble


def _read(path: str) -> tuple[tuple[bytes, ...], _Signature]:
    """Return the digests of a file's keys, and the signature that shows a change."""
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
        if key in keys:  # an operator who deletes one of the two lines believes that the key is revoked
            raise _UnusableError(f"line {number} has the key of line {keys[key]} again; give each key once")
        keys[key] = number
    if not keys:
        raise _UnusableError("has no keys; it needs one per line")
    if len(keys) > _MOST_KEYS:
        raise _UnusableError(f"has {len(keys):,} keys; at most {_MOST_KEYS:,} are allowed")
    return tuple(sha256(key).digest() for key in keys), signature


def _signature(found: os.stat_result) -> _Signature:
    """Return values that change with the file, also if Kubernetes swaps the symbolic link that it mounts."""
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def cache_salt(key: bytes) -> str:
    """Return the salt of the prefix cache for clients with `key`: 64 characters, which do not reveal the key.

    It depends only on the key, so all replicas compute the same salt, also after a restart.
    """
    return hmac.new(key, _CACHE_SALT, sha256).hexdigest()


class ApiKeyMiddleware:
    """Answers 401 to requests without a key of `keys`, before their path or body is read.

    Other requests are forwarded unchanged, so a stream costs nothing more. The request's state gets a short
    name of the key, and its cache salt.

    Args:
        share_prefix_cache: Whether clients with different keys share prefix caches. If so, there is no salt.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeyFile, share_prefix_cache: bool = False) -> None:
        self._app = app
        self._keys = keys
        self._share_prefix_cache = share_prefix_cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and route_path(scope) in OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        try:
            key = _key(scope)
            if not await self._keys.has(key):
                raise _refusal("this API key is not one of the server's.")
        except ApiError as error:
            if scope["type"] == "http":
                reply = Response(error.body(), error.status, headers=error.headers, media_type=JSON)
                await reply(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        state = scope.setdefault("state", {})
        state["api_key"] = f"API key {sha256(key).hexdigest()[:8]}"
        state["cache_salt"] = "" if self._share_prefix_cache else cache_salt(key)
        await self._app(scope, receive, send)


def _key(scope: Scope) -> bytes:
    """Return the client's key, a bearer token (RFC 6750, 2.1). Raises ApiError if it is not exactly one."""
    given: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) != 1:
        what = f"given {len(given)} times; it must be given once" if given else "an API key is required"
        raise _refusal(f"{what}: Authorization: Bearer KEY")
    scheme, _, key = given[0].strip().partition(b" ")
    if scheme.lower() != b"bearer" or not key.strip():
        raise _refusal("must have the form: Bearer KEY")
    return key.strip()


def _refusal(problem: str) -> ApiError:
    return ApiError(
        401, f"Authorization: {problem}", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
    )
