"""Tokens of an OpenID Connect issuer (JWT, RFC 7519) in place of API keys.

A token is checked once, and then found by its digest until it expires. The issuer's keys are fetched when a
token names an unknown key, at most once a minute, and every five minutes while tokens come. If a key is gone,
all tokens are checked again. If the issuer does not answer, the known keys stay in force.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import jwt
import msgspec

from serve_app.api.errors import ApiError, invalid_key
from serve_app.settings.caller import LANES
from serve_app.settings.keys_file import DIGEST, ApiKey
from serve_app.settings.oidc import OidcSettings

logger = logging.getLogger("ray.serve")
_Name = TypeVar("_Name", bytes, str)

_MOST = 10_000
"""The most tokens, and the most callers, that are remembered."""
FETCH_S, REFRESH_S = 60.0, 300.0
_RETRY_S = 5.0
"""The time between two attempts while no key is known."""
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_MOST_BYTES = 1 << 20
_LONGEST_NAME = 200
_LAST_S = 4e9
"""Later times count as this one, because dates end with the year 9999."""


class Oidc:
    """Checks the tokens of one issuer. Use it in one event loop.

    Args:
        teams: Returns the names of all teams.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        settings: OidcSettings,
        teams: Callable[[], Container[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._teams, self._clock = settings, teams, clock
        self._keys: dict[str | None, Any] = {}
        """By `kid`. A `PyJWK` allows only its own algorithm; a plain key allows all of the settings."""
        self._documents: dict[str | None, Any] = {}
        self._tokens: dict[bytes, ApiKey] = {}
        """By the digest of the token."""
        self.callers: dict[str, ApiKey] = {}
        """The entry of each caller's last token, by name."""
        self._fetching: asyncio.Task[None] | None = None
        self._may_fetch_at = self._stale_at = clock()
        self._trouble = ""

    def cached(self, digest: bytes) -> ApiKey | None:
        """Return the entry of a token that has been checked."""
        found = self._tokens.get(digest)
        if found is None or (found.team is not None and found.team not in self._teams()):
            return None
        if self._clock() >= self._stale_at:
            self._fetch()
        return found

    async def check(self, token: bytes, digest: bytes) -> ApiKey:
        """Return the entry of a token. Raises ApiError 401 or 403, or 503 while no key could be fetched."""
        settings = self._settings
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            unknown = self._key(kid) is None
            fetching = self._fetch() if unknown or self._clock() >= self._stale_at else None
            if unknown and fetching is not None:
                await asyncio.wait({fetching})
            if not self._keys:
                message = "The keys of the token's issuer cannot be fetched."
                raise ApiError(503, message, code="issuer_unavailable", headers={"Retry-After": "5"})
            if (key := self._key(kid)) is None:
                raise invalid_key("the token's signing key is not one of its issuer's.")
            claims = jwt.decode(
                token,
                key,
                settings.algorithms,
                {"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
            )
        except (jwt.PyJWTError, TypeError) as error:  # TypeError: an algorithm of another kind of keys
            raise invalid_key(f"the token is refused: {error}") from None
        entry = self._entry(claims)
        _keep(self._tokens, digest, entry)
        _keep(self.callers, entry.name, entry)
        return entry

    def _key(self, kid: str | None) -> Any:
        """Return a key. A token may name none if its issuer has only one (OpenID Connect Core, 10.1)."""
        only = kid is None and len(self._keys) == 1
        return next(iter(self._keys.values())) if only else self._keys.get(kid)

    def _entry(self, claims: Mapping[str, Any]) -> ApiKey:
        """Return the rights that the claims give. Raises ApiError 401 or 403."""
        settings, names = self._settings, self._settings.claims
        given = next(iter(_texts(claims, names.name) or ()), "")
        name = quote(given, safe="@|+")
        if not 0 < len(name) <= _LONGEST_NAME:
            raise invalid_key(f"the token's claim {names.name!r} must have 1 to {_LONGEST_NAME} characters.")
        team = next((each for each in _texts(claims, names.team) or () if each in self._teams()), None)
        if names.team is not None and team is None:
            message = f"The token's claim {names.team!r} has no team of this server."
            raise ApiError(403, message, code="team_not_allowed")
        lanes, models = _texts(claims, names.lane) or (), _texts(claims, names.models)
        # Not validated: a name with a colon is no key's of the file.
        return ApiKey.model_construct(
            name=f"oidc:{name}",
            hash=DIGEST + sha256(f"{settings.issuer}\0{name}".encode()).hexdigest(),
            lane=next((lane for lane in LANES if lane in lanes), settings.lane),
            models=settings.models if models is None else tuple(models),
            team=team,
            admin=settings.admin_value in (_texts(claims, names.admin) or ()),
            expires=datetime.fromtimestamp(min(int(claims["exp"]) + settings.leeway_s, _LAST_S), UTC),
        )

    def _fetch(self) -> asyncio.Task[None] | None:
        """Return the task that fetches the keys; None if they were fetched within a minute."""
        if (self._fetching is None or self._fetching.done()) and self._clock() >= self._may_fetch_at:
            self._may_fetch_at = self._clock() + FETCH_S
            self._fetching = asyncio.create_task(self._fetch_keys())
        return None if self._fetching is None or self._fetching.done() else self._fetching

    async def _fetch_keys(self) -> None:
        issuer = self._settings.issuer
        try:
            async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True) as client:
                found = await _read(client, issuer.rstrip("/") + "/.well-known/openid-configuration")
                if found["issuer"] != issuer:
                    raise ValueError(f"its configuration is of the issuer {found['issuer']!r}")
                documents = (await _read(client, found["jwks_uri"]))["keys"]
            self.use(documents)
        except Exception as error:  # another company's server may answer anything
            if not self._trouble:
                logger.error("oidc: the keys of %s cannot be fetched: %r; the known keys stay", issuer, error)
            self._trouble = repr(error)
            self._may_fetch_at = self._clock() + (FETCH_S if self._keys else _RETRY_S)

    def use(self, documents: Iterable[dict[str, Any]]) -> None:
        """Put the issuer's keys (RFC 7517) in force.

        Keys for encryption, secrets, and keys of unknown curves are left out.
        """
        chosen = {
            each.get("kid"): each
            for each in documents
            if each.get("use", "sig") == "sig" and each.get("kty") in ("RSA", "EC", "OKP")
        }
        self._keys = {}
        for kid, document in chosen.items():
            with suppress(jwt.PyJWTError):  # of a curve that PyJWT does not know
                key = jwt.PyJWK(document)
                self._keys[kid] = key if "alg" in document else key.key
        if any(chosen.get(kid) != document for kid, document in self._documents.items()):
            self._tokens.clear()
        self._documents, self._trouble = chosen, ""
        self._stale_at = self._clock() + REFRESH_S


async def _read(client: aiohttp.ClientSession, url: str) -> Any:
    """Return a JSON document. Raises ValueError if it is larger than 1 MiB, and others."""
    body = bytearray()
    async with client.get(url, raise_for_status=True) as reply:
        async for part in reply.content.iter_any():
            body += part
            if len(body) > _MOST_BYTES:
                raise ValueError(f"{url} has more than {_MOST_BYTES} bytes")
    return msgspec.json.decode(body)


def _texts(claims: Mapping[str, Any], name: str | None) -> list[str] | None:
    """Return the values of a claim that are texts; None if the token lacks the claim."""
    if name is None:
        return None
    found: Any = claims
    for part in [name] if name in claims else name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    values = found if isinstance(found, list) else [found]
    return None if found is None else [each for each in values if isinstance(each, str)]


def _keep(kept: dict[_Name, ApiKey], name: _Name, entry: ApiKey) -> None:
    """Add an entry as the newest, in place of the oldest if there are too many."""
    kept.pop(name, None)
    if len(kept) >= _MOST:
        del kept[next(iter(kept))]
    kept[name] = entry
