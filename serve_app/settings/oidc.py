"""OpenID Connect: whose tokens callers may send in place of API keys, and what the claims mean."""

from typing import Annotated, Literal

from pydantic import Field

from serve_app.settings.caller import Lane
from serve_app.settings.closed_model import ClosedModel

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
Claim = Annotated[str, Field(min_length=1, max_length=200)]


class OidcClaims(ClosedModel):
    """The names of claims. A name is looked up as it is, and then as a path such as `realm_access.roles`."""

    name: Claim = "sub"
    """The caller's name. It becomes `oidc:NAME` in metrics, logs and the ledger."""
    team: Claim | None = None
    """The team: the first value that is in the `teams` of the file of keys. Callers without one get 403."""
    lane: Claim | None = None
    """The lane; of several, the one with the highest priority."""
    models: Claim | None = None
    """The allowed models, with wildcards."""
    admin: Claim | None = None
    """A caller is an admin if a value is `admin_value`."""


class OidcSettings(ClosedModel):
    """An issuer whose JSON Web Tokens are accepted beside API keys."""

    issuer: Annotated[
        str, Field(pattern=r"^(https://|http://(localhost|127\.0\.0\.1)[:/])[^?#\s]+$", max_length=500)
    ]
    """The claim `iss` of all tokens. Its path `/.well-known/openid-configuration` names the issuer's keys."""
    audience: Annotated[str, Field(min_length=1, max_length=500)]
    """A value of the claim `aud`, which all tokens must have."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    leeway_s: Annotated[float, Field(ge=0, le=300)] = 30.0
    """How far the issuer's clock may differ, for `exp`, `nbf` and `iat`."""
    claims: OidcClaims = OidcClaims()
    lane: Lane = "standard"
    """The lane of callers without the claim."""
    models: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    """The allowed models of callers without the claim."""
    admin_value: str = "tideserve-admin"
