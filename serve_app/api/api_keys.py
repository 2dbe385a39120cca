"""Require an API key, if `http.api_keys_file` names a file of keys (`settings.keys_file`).

The file is read again when it changes. No message and no log contains a key or a digest.

A key is found by its SHA-256 in a dictionary. The time of this depends on the digest of the client's guess,
and on the digests of the keys. A client cannot choose a guess whose digest is close to a key's, so the time
tells the client nothing about a key.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.api.dialect import error_response, route_path
from serve_app.api.errors import ApiError, invalid_key
from serve_app.api.page import PAGE_PATHS
from serve_app.settings.keys_file import MOST_BYTES, ApiKey, KeysFile, parse_keys
from serve_app.settings.settings_error import SettingsError

if TYPE_CHECKING:
    from serve_app.api.oidc import Oidc  # whose imports take 0.1 s

logger = logging.getLogger("ray.serve")

_KEYLESS = frozenset(("/health", "/ready")) | PAGE_PATHS
_METRICS = "/metrics"
OPEN_PATHS = _KEYLESS | {_METRICS}
"""Probes, scrapes and the page's own files need no key."""
_FORM = "Authorization: Bearer KEY"
_POLICY_VIOLATION = 1008
"""RFC 6455, 7.4.1."""
SETTING = "http.api_keys_file"
OIDC = "oidc:"
"""The begin of the names of callers with tokens. No key of the file has a name with a colon."""
_LOOK_S = 1.0
_LOOK_WAIT_S = 1.0
"""How long a request waits for a check of the file. A network file system may never answer."""
_APPEARS_S = 180
"""Kubernetes shows a new Secret in a running pod after up to two minutes."""

_Signature = tuple[int, int, int, int, int]


class ApiKeyFile:
    """The keys in force.

    If the file vanishes, or becomes empty or invalid, the previous keys stay in force. The file may be in the
    middle of a change, and such a change must neither lock all clients out nor let all clients in.

    Args:
        clock: Seconds on a clock that never goes back.
        wall: Unix time in seconds, for the expiry of keys.
        check: Raises SettingsError if the keys do not fit other settings.

    Raises:
        SettingsError: the file has no usable keys at the start.
    """

    def __init__(
        self,
        path: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        check: Callable[[KeysFile], None] = lambda found: None,
    ) -> None:
        self._path = path
        self._check = check
        self._clock = clock
        self._wall = wall
        try:
            found, self._signature = _read(path)
            check(found)
        except (SettingsError, OSError) as error:
            raise SettingsError([f"{SETTING} = {path!r}: {reason}" for reason in _reasons(error)]) from None
        self._put_in_force(found)
        self.oidc: Oidc | None = None
        """Accepts tokens beside the keys; None if only keys are accepted."""
        self.trouble = ""
        """Why the file as it is now is not in force; "" if it is."""
        self._looking = False
        self._due_s = clock() + _LOOK_S
        """When the file is to be checked again."""

    def __len__(self) -> int:
        """Return the number of keys in force, with those that have expired."""
        return len(self._keys)

    def authenticate(self, key: bytes) -> ApiKey:
        """Return the entry of `key`. Raises ApiError 401 if clients may not use it, or no longer."""
        found = self._keys.get(sha256(key).digest())
        if found is None:
            raise invalid_key("this API key is not one of the server's.")
        return self._checked(found)

    async def identify(self, given: bytes) -> ApiKey:
        """Return the entry of a key or a token. Raises ApiError 401, or another of `Oidc.check`."""
        if self.oidc is None:
            return self.authenticate(given)
        digest = sha256(given).digest()
        found = self._keys.get(digest) or self.oidc.cached(digest)
        if found is None and given.count(b".") == 2:  # the form of a JWT
            found = await self.oidc.check(given, digest)
        return self._checked(found) if found is not None else self.authenticate(given)

    def _checked(self, found: ApiKey) -> ApiKey:
        if found.expires_at is not None and self._wall() >= found.expires_at:
            raise invalid_key("this API key has expired.")
        return found

    def named(self, name: str) -> ApiKey:
        """Return the entry of this name. Raises ApiError 401 if it is gone or has expired."""
        if self.oidc is not None and name.startswith(OIDC):
            if (caller := self.oidc.callers.get(name)) is not None:
                return caller
            message = f"The caller {name!r} has sent no token since this ingress replica started."
            raise ApiError(503, message, code="caller_unknown", headers={"Retry-After": "60"})
        found = self._names.get(name)
        if found is None:
            raise invalid_key(f"the API key {name!r} is not one of the server's any more.")
        return self._checked(found)

    def in_force(self, key: ApiKey) -> bool:
        """Whether clients may still use a key that has been authenticated, with the same rights."""
        expired = key.expires_at is not None and self._wall() >= key.expires_at
        return not expired and (self._keys.get(key.digest) == key or key.name.startswith(OIDC))

    async def refresh(self) -> None:
        """Put a changed file in force, at most once a second.

        A caller waits for a check of the file for at most a second. The check is made in a thread, because
        even a local disk may be slow and this loop serves streams.
        """
        if self._clock() >= self._due_s and not self._looking:
            self._due_s = self._clock() + _LOOK_S
            self._looking = True
            looking = asyncio.get_running_loop().run_in_executor(None, self._look)
            await asyncio.wait([looking], timeout=_LOOK_WAIT_S)

    def _look(self) -> None:
        try:
            if _signature(os.stat(self._path)) == self._signature:
                self.trouble = ""
                return
            found, self._signature = _read(self._path)
            self._check(found)
        except (SettingsError, OSError) as error:
            self._report("; ".join(_reasons(error)))
        else:
            self.trouble = ""
            self._put_in_force(found)
            logger.info(f"{SETTING} = {self._path!r}: has changed; keys in force: {len(self)}")
        finally:
            self._looking = False

    def _put_in_force(self, found: KeysFile) -> None:
        self._keys = {key.digest: key for key in found.keys}
        self._names = {key.name: key for key in found.keys}
        self.teams, self.budgets = found.teams, found.budgets
        self.has_limits = any(key.is_limited for key in found.keys)
        if plain := found.plain:
            logger.warning(
                f"{SETTING} = {self._path!r}: keys in plain text: {', '.join(plain)}; give each a `hash` in "
                "place of its `key`, as `tideserve keys new` prints it"
            )

    def _report(self, trouble: str) -> None:
        if trouble != self.trouble:
            logger.error(f"{SETTING} = {self._path!r}: {trouble}; the previous keys stay in force")
        self.trouble = trouble


async def appeared(
    path: str,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    check: Callable[[KeysFile], None] = lambda found: None,
) -> ApiKeyFile:
    """Return the keys of a file, which may appear within three minutes. Raises SettingsError."""
    for second in range(_APPEARS_S):
        if await asyncio.to_thread(os.path.exists, path):
            break
        if second == 0:
            logger.warning(f"{SETTING} = {path!r}: does not exist yet; waiting up to {_APPEARS_S} s for it")
        await sleep(1.0)
    return ApiKeyFile(path, check=check)


def _read(path: str) -> tuple[KeysFile, _Signature]:
    """Return the keys of a file, and the signature that shows a change. Raises OSError, SettingsError."""
    with open(path, "rb") as file:
        signature = _signature(os.fstat(file.fileno()))
        return parse_keys(file.read(MOST_BYTES + 1)), signature


def _signature(found: os.stat_result) -> _Signature:
    """Return values that change with the file, also if Kubernetes swaps the symbolic link that it mounts."""
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _reasons(error: SettingsError | OSError) -> list[str]:
    """Return the problems of a file, without its path and content."""
    return error.problems if isinstance(error, SettingsError) else [error.strerror or type(error).__name__]


class ApiKeyMiddleware:
    """Answers 401 to requests without a key of `keys`, before their body is read. Open paths need no key.

    Other requests are forwarded unchanged, so a stream costs nothing more. The request's state gets the
    entry of the key (`key`), the sender (`caller`), and its cache salt.

    Args:
        share_prefix_cache: Whether clients with different keys share prefix caches. If so, there is no salt.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeyFile, share_prefix_cache: bool = False) -> None:
        self._app = app
        self._keys = keys
        self._share_prefix_cache = share_prefix_cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope) if scope["type"] == "http" else ""
        if scope["type"] == "lifespan" or path in _KEYLESS:
            await self._app(scope, receive, send)
            return
        try:
            await self._keys.refresh()
            key = await self._key_of(scope)
        except ApiError as error:
            if path == _METRICS:  # which shows more to an admin key
                await self._app(scope, receive, send)
            elif scope["type"] == "http":
                await error_response(error, scope)(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        state = scope.setdefault("state", {})
        state["key"] = key
        state["caller"] = key.caller
        state["cache_salt"] = "" if self._share_prefix_cache else key.cache_salt
        await self._app(scope, receive, send)

    async def _key_of(self, scope: Scope) -> ApiKey:
        """Return the entry of the client's key: of a bearer token (RFC 6750, 2.1), or of `x-api-key`.

        Either header may be a gateway's own. If both have a key of the server's, the bearer token goes first.

        Raises:
            ApiError: neither header has one.
        """
        refusals = []
        for header, scheme in ((b"authorization", b""), (b"x-api-key", b"Bearer ")):
            if given := [scheme + value for name, value in scope["headers"] if name == header]:
                try:
                    return await self._keys.identify(_key(given))
                except ApiError as error:
                    refusals.append(error)
        raise next(iter(refusals), invalid_key(f"an API key is required: {_FORM}"))


def _key(given: list[bytes]) -> bytes:
    """Return the key in the values of one header. Raises ApiError 401 unless there is exactly one."""
    if len(given) != 1:
        raise invalid_key(f"given {len(given)} times; it must be given once: {_FORM}")
    scheme, _, key = given[0].strip().partition(b" ")
    if scheme.lower() != b"bearer" or not key.strip():
        raise invalid_key("must have the form: Bearer KEY")
    return key.strip()
