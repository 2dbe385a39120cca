"""Lets in only clients with an API key of a file, which is read again when it changes."""

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from hashlib import sha256

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.api.api_key_file import UnusableError, file_signature, read_keys, reason
from serve_app.api.engine_client import JSON
from serve_app.api.errors import ApiError
from serve_app.settings.settings_error import SettingsError

logger = logging.getLogger("ray.serve")

SETTING = "http.api_keys_file"
OPEN_PATHS = frozenset(("/health", "/ready", "/metrics"))
"""For probes and scrapes, which have no key."""
_LOOK_S = 1.0
_LOOK_WAIT_S = 1.0
"""How long a request waits for a look at the file; a network file system may never answer."""
_POLICY_VIOLATION = 1008
"""RFC 6455, 7.4.1."""


class ApiKeys:
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
        self._clock = clock
        try:
            self._digests, self._signature = read_keys(path)
        except UnusableError as error:
            raise SettingsError([f"{SETTING} = {path!r}: {error}"]) from None
        self._trouble = ""
        self._looking = False
        self._due_s = clock() + _LOOK_S

    async def known(self, key: bytes) -> bool:
        """Whether a client may use `key`. At most once a second, a caller waits for a look at the file."""
        now = self._clock()
        if now >= self._due_s and not self._looking:
            self._due_s = now + _LOOK_S
            await self._look_aside()
        given = sha256(key).digest()
        found = 0
        for digest in self._digests:  # All of them, so that the time does not tell which one it was.
            found |= hmac.compare_digest(digest, given)
        return bool(found)

    async def _look_aside(self) -> None:
        """In a thread: even a local disk may take its time, and every stream is in this loop."""
        self._looking = True
        looking = asyncio.get_running_loop().run_in_executor(None, self._look)
        await asyncio.wait([looking], timeout=_LOOK_WAIT_S)

    def _look(self) -> None:
        try:
            if file_signature(self._path) == self._signature:
                self._trouble = ""
                return
            self._digests, self._signature = read_keys(self._path)
        except (UnusableError, OSError) as error:
            self._say(reason(error))
        else:
            self._trouble = ""
            logger.info(f"{SETTING} = {self._path!r}: has changed; keys in force: {len(self._digests)}")
        finally:
            self._looking = False

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            logger.error(f"{SETTING} = {self._path!r}: {trouble}; the previous keys stay in force")
        self._trouble = trouble


class ApiKeyMiddleware:
    """Answers 401 to requests without a key of `keys`, before their path or body is looked at.

    What passes is handed on as it is, with a short name of the key in the request's state: a stream pays
    nothing for it.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, or refuse."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and _path(scope) in OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        try:
            key = _key(scope)
            if not await self._keys.known(key):
                raise _refusal("this API key is not one of the server's.")
        except ApiError as error:
            if scope["type"] == "http":
                reply = Response(error.body(), error.status, headers=error.headers, media_type=JSON)
                await reply(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        scope.setdefault("state", {})["api_key"] = f"API key {sha256(key).hexdigest()[:8]}"
        await self._app(scope, receive, send)


def _path(scope: Scope) -> str:
    """The path as the routes see it: below the application's `route_prefix`."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if path.startswith(f"{root}/") else path


def _key(scope: Scope) -> bytes:
    """The client's key, a bearer token (RFC 6750, 2.1). Raises ApiError where there is not exactly one."""
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
