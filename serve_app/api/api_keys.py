"""Lets in only clients with an API key, where the settings name a file of keys."""

import hmac
from hashlib import sha256

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.api.api_key_file import ApiKeyFile
from serve_app.api.engine_client import JSON
from serve_app.api.errors import ApiError
from serve_app.api.middleware import route_path

OPEN_PATHS = frozenset(("/health", "/ready", "/metrics"))
"""For probes and scrapes, which have no key."""
_POLICY_VIOLATION = 1008
"""RFC 6455, 7.4.1."""
_CACHE_SALT = b"tideserve: salt of the prefix cache"


async def is_known(keys: ApiKeyFile, key: bytes) -> bool:
    """Whether a client may use `key`. At most once a second, a caller waits for a look at the file."""
    if keys.clock() >= keys.due_s:
        await keys.refresh()
    given = sha256(key).digest()
    found = 0
    for digest in keys.digests:  # All of them, so that the time does not tell which one it was.
        found |= hmac.compare_digest(digest, given)
    return bool(found)


def cache_salt(key: bytes) -> str:
    """Return the salt of the prefix cache of a client with `key`: 64 characters, which do not tell the key.

    It follows from nothing else, so that it is the same at each replica and after each restart.
    """
    return hmac.new(key, _CACHE_SALT, sha256).hexdigest()


class ApiKeyMiddleware:
    """Answers 401 to requests without a key of `keys`, before their path or body is looked at.

    What passes is handed on as it is, with a short name of the key and its cache salt in the request's state:
    a stream pays nothing for it.

    Args:
        share_prefix_cache: Whether clients with different keys share prefix caches; then there is no salt.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeyFile, share_prefix_cache: bool = False) -> None:
        self._app = app
        self._keys = keys
        self._share_prefix_cache = share_prefix_cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, or refuse."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and route_path(scope) in OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        try:
            key = _key(scope)
            if not await is_known(self._keys, key):
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
