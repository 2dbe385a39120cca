"""Tokens of an issuer that runs on this machine, over HTTP."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from serve_app.api import oidc
from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.errors import ApiError
from serve_app.api.oidc import FETCH_S, REFRESH_S, Oidc
from serve_app.settings.caller import Caller
from serve_app.settings.oidc import OidcSettings
from tests.api.server import Server, error_of
from tests.refusal import refusal_of
from tests.timing import Clock, until

AUDIENCE = "tideserve"
RSA_KEYS = [rsa.generate_private_key(65537, 2048) for _ in range(2)]
EC_KEY = ec.generate_private_key(ec.SECP256R1())
KEYS = """
keys: [{name: web, key: sk-web}]
teams: {shop: {budget: {usd: 3, per: month}}, search: {}}
"""


class FakeIssuer:
    """An issuer of tokens: its configuration and its public keys over real HTTP."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"a": RSA_KEYS[0], "e": EC_KEY}
        self.fetched = 0
        self.down = False
        self.more = b""
        """Follows the keys, in a packet of its own."""
        self.alg: str | None = None
        """The algorithm of its RSA keys, if it says it."""
        self.issuer = ""
        """What the configuration says; by default its own address."""
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._configuration)
        app.router.add_get("/keys", self._keys)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/") + "/"

    async def _configuration(self, _: web.Request) -> web.Response:
        return web.json_response({"issuer": self.issuer or self.url, "jwks_uri": f"{self.url}keys"})

    async def _keys(self, asked: web.Request) -> web.StreamResponse:
        self.fetched += 1
        if self.down:
            raise web.HTTPServiceUnavailable
        rows = []
        for kid, key in self.keys.items():
            kind = (
                jwt.algorithms.RSAAlgorithm
                if isinstance(key, rsa.RSAPrivateKey)
                else jwt.algorithms.ECAlgorithm
            )
            alg = {"alg": self.alg} if self.alg and kind is jwt.algorithms.RSAAlgorithm else {}
            rows.append(json.loads(kind.to_jwk(key.public_key())) | {"kid": kid, "use": "sig"} | alg)
        rows.append({"kty": "oct", "kid": "secret", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"})
        rows.append({"kty": "EC", "kid": "new", "crv": "P-1024", "x": "AA", "y": "AA"})
        reply = web.StreamResponse()
        await reply.prepare(asked)
        body = json.dumps({"keys": rows}).encode()
        for part in (body[:-9], body[-9:], self.more):
            await reply.write(part)
            await asyncio.sleep(0.01)  # else the client may get both at once
        return reply

    def token(self, kid: str | None = "a", key: Any = None, algorithm: str = "RS256", **claims: Any) -> str:
        now = int(time.time())
        body = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "exp": now + 600, "iat": now}
        body = {name: value for name, value in (body | claims).items() if value is not None}
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(body, key or self.keys[kid or "a"], algorithm, headers)


class Sender:
    """A file of keys that also accepts tokens of an issuer."""

    def __init__(self, issuer: FakeIssuer, folder: Path, **settings: Any) -> None:
        path = folder / "keys.yaml"
        path.write_text(KEYS)
        self.clock = Clock()
        self.keys = ApiKeyFile(str(path))
        given = OidcSettings.model_validate({"issuer": issuer.url, "audience": AUDIENCE} | settings)
        self.keys.oidc = self.oidc = Oidc(given, lambda: self.keys.teams, self.clock)

    async def refusal(self, token: str) -> ApiError:
        return await refusal_of(self.keys.identify(token.encode()))


@pytest.fixture
async def issuer() -> AsyncIterator[FakeIssuer]:
    made = FakeIssuer()
    await made.server.start_server()
    yield made
    await made.server.close()


@pytest.fixture
def sender(issuer: FakeIssuer, tmp_path: Path) -> Sender:
    return Sender(issuer, tmp_path)


async def test_a_token_identifies_its_caller(issuer: FakeIssuer, sender: Sender) -> None:
    found = await sender.keys.identify(issuer.token(sub="auth0|alice smith").encode())

    assert found.caller == Caller("oidc:auth0|alice%20smith", "standard", 1.0)
    assert (found.models, found.team, found.admin, found.is_limited) == (("*",), None, False, False)
    assert len(found.cache_salt) == 64
    assert sender.keys.in_force(found)
    assert sender.keys.named(found.name) is found


async def test_keys_of_the_file_stay_accepted(issuer: FakeIssuer, sender: Sender) -> None:
    assert (await sender.keys.identify(b"sk-web")).name == "web"
    assert (
        await sender.refusal("sk-none")
    ).message == "Authorization: this API key is not one of the server's."
    assert issuer.fetched == 0


async def test_claims_give_team_lane_models_and_admin(issuer: FakeIssuer, tmp_path: Path) -> None:
    claims = {
        "name": "email",
        "team": "groups",
        "lane": "https://tide/lane",
        "models": "tide.models",
        "admin": "roles",
    }
    sender = Sender(issuer, tmp_path, claims=claims, admin_value="boss")
    token = issuer.token(
        email="a@example.com",
        groups=["staff", "shop"],
        roles=["dev", "boss"],
        tide={"models": ["qwen-*", "org/embed"]},
        **{"https://tide/lane": ["background", "interactive"]},
    )
    found = await sender.keys.identify(token.encode())

    assert found.caller == Caller("oidc:a@example.com", "interactive", 1.0, ("team/shop",))
    assert (found.models, found.admin) == (("qwen-*", "org/embed"), True)


@pytest.mark.parametrize(
    ("models", "allowed"), [(None, ("org/*",)), ([], ()), (7, ()), (["qwen"], ("qwen",)), ("qwen", ("qwen",))]
)
async def test_an_empty_claim_of_models_allows_none(
    issuer: FakeIssuer, tmp_path: Path, models: object, allowed: tuple[str, ...]
) -> None:
    sender = Sender(issuer, tmp_path, claims={"models": "models"}, models=["org/*"])
    found = await sender.keys.identify(issuer.token(models=models).encode())

    assert found.models == allowed
    assert found.allows("org/embed") == (models is None)


@pytest.mark.parametrize("groups", [None, "staff", ["staff"], {"shop": 1}, 7])
async def test_callers_without_a_team_are_refused(issuer: FakeIssuer, tmp_path: Path, groups: object) -> None:
    sender = Sender(issuer, tmp_path, claims={"team": "groups"})
    error = await sender.refusal(issuer.token(groups=groups))

    assert (error.status, error.code) == (403, "team_not_allowed")


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"aud": "another"}, "Audience doesn't match"),
        ({"aud": None}, 'missing the "aud" claim'),
        ({"iss": "https://evil.example"}, "Invalid issuer"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, 'missing the "exp" claim'),
        ({"nbf": 1 << 33}, "not yet valid"),
        ({"iat": 1 << 33}, "not yet valid"),
        ({"sub": None}, "'sub' must have 1 to 200 characters"),
        ({"sub": ""}, "'sub' must have 1 to 200 characters"),
        ({"sub": "x" * 201}, "'sub' must have 1 to 200 characters"),
    ],
)
async def test_a_token_with_wrong_claims_is_refused(
    issuer: FakeIssuer, sender: Sender, claims: dict[str, Any], problem: str
) -> None:
    if "sub" in claims and not claims["sub"]:
        claims = {**claims, "sub": None}
    error = await sender.refusal(issuer.token(**claims))

    assert error.status == 401
    assert problem in error.message


@pytest.mark.parametrize(("late_s", "accepted"), [(25, True), (40, False)])
async def test_clocks_may_differ_by_the_leeway(
    issuer: FakeIssuer, sender: Sender, late_s: int, accepted: bool
) -> None:
    now = int(time.time())
    for token in (
        issuer.token(exp=now - late_s),
        issuer.token(nbf=now + late_s),
        issuer.token(iat=now + late_s),
    ):
        if accepted:
            assert (await sender.keys.identify(token.encode())).name == "oidc:alice"
        else:
            assert (await sender.refusal(token)).status == 401


async def test_a_checked_token_ends_with_its_expiry(issuer: FakeIssuer, tmp_path: Path) -> None:
    wall = Clock(time.time())
    sender = Sender(issuer, tmp_path)
    sender.keys = ApiKeyFile(str(tmp_path / "keys.yaml"), wall=wall)
    sender.keys.oidc = sender.oidc
    token = issuer.token()
    found = await sender.keys.identify(token.encode())
    wall.now += 631

    assert (await sender.refusal(token)).message == "Authorization: this API key has expired."
    assert not sender.keys.in_force(found)


def forged(header: dict[str, Any], body: dict[str, Any], secret: bytes | None) -> str:
    """A token that PyJWT would not make."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, body)
    ]
    signed = ".".join(parts).encode()
    signature = b"" if secret is None else hmac.digest(secret, signed, hashlib.sha256)
    return f"{signed.decode()}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def test_forged_algorithms_are_refused(issuer: FakeIssuer, sender: Sender) -> None:
    body = jwt.decode(issuer.token(), options={"verify_signature": False})
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public = RSA_KEYS[0].public_key().public_bytes(encoding, form)
    tokens = [
        forged({"alg": "none", "kid": "a"}, body, None),
        forged({"alg": "None", "kid": "a"}, body, None),
        forged({"kid": "a"}, body, None),
        forged({"alg": "HS256", "kid": "a"}, body, public),
        forged({"alg": "HS256", "kid": "secret"}, body, b"secret-secret-secret-secret-secret"),
        forged({"alg": "RS256", "kid": "a"}, body, public),
        forged({"alg": "RS256", "kid": "a", "crit": ["exp"]}, body, public),
        forged({"alg": "RS256", "kid": ["a"]}, body, public),
        issuer.token(kid="a", key=RSA_KEYS[1]),  # another's key
        issuer.token(kid="e", key=RSA_KEYS[0]),
        issuer.token(kid="a", key=EC_KEY, algorithm="ES256"),
        issuer.token(kid="a", algorithm="PS256"),  # not in the list
        issuer.token()[:-8] + "AAAAAAAA",
        "eyJ.eyJ.x",
        "..",
        "é.é.é",
    ]
    for token in tokens:
        assert (await sender.refusal(token)).status == 401, token
    assert issuer.fetched == 1
    assert (await sender.keys.identify(issuer.token("e", algorithm="ES256").encode())).name == "oidc:alice"


async def test_large_tokens_are_accepted_over_http(issuer: FakeIssuer, sender: Sender) -> None:
    token = issuer.token(groups=["g" * 60] * 100)
    server = Server(api_keys=sender.keys)
    body = {"model": "tide", "messages": []}
    replies = [
        await server.http.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {each}"})
        for each in (token, token, token[:-1])
    ]

    assert len(token) > 8192
    assert [reply.status_code for reply in replies] == [200, 200, 401]
    assert error_of(replies[2])["code"] == "invalid_api_key"
    assert server.chat.requests[0].caller.key == "oidc:alice"


async def test_new_keys_are_fetched_once_a_minute(issuer: FakeIssuer, sender: Sender) -> None:
    assert (await sender.keys.identify(issuer.token().encode())).name == "oidc:alice"
    issuer.keys["b"] = RSA_KEYS[1]
    token = issuer.token("b")
    for _ in range(20):
        assert "signing key is not one of" in (await sender.refusal(token)).message
    assert issuer.fetched == 1
    sender.clock.now += FETCH_S

    assert (await sender.keys.identify(token.encode())).name == "oidc:alice"
    assert issuer.fetched == 2


async def test_a_key_of_an_unknown_curve_leaves_the_others_usable(issuer: FakeIssuer, sender: Sender) -> None:
    assert (await sender.keys.identify(issuer.token().encode())).name == "oidc:alice"
    refused = await sender.refusal(issuer.token("new", RSA_KEYS[0]))

    assert (refused.status, issuer.fetched) == (401, 1)


async def test_keys_of_a_size_without_bound_are_not_read(issuer: FakeIssuer, sender: Sender) -> None:
    issuer.more = b" " * (1 << 20)

    assert (await sender.refusal(issuer.token())).code == "issuer_unavailable"


async def test_a_token_may_name_no_key_if_there_is_one(issuer: FakeIssuer, sender: Sender) -> None:
    token = issuer.token(None, RSA_KEYS[0]).encode()
    refused = await sender.refusal(token.decode())
    del issuer.keys["e"]
    sender.clock.now += FETCH_S

    assert refused.status == 401
    assert (await sender.keys.identify(token)).name == "oidc:alice"


@pytest.mark.parametrize(("alg", "accepted"), [(None, True), ("RS512", True), ("RS256", False)])
async def test_a_key_without_an_algorithm_allows_those_of_the_settings(
    issuer: FakeIssuer, tmp_path: Path, alg: str | None, accepted: bool
) -> None:
    sender = Sender(issuer, tmp_path, algorithms=["RS512", "ES256"])
    issuer.alg = alg
    token = issuer.token(algorithm="RS512")
    if accepted:
        assert (await sender.keys.identify(token.encode())).name == "oidc:alice"
    else:
        assert (await sender.refusal(token)).status == 401


async def test_concurrent_tokens_share_one_fetch(issuer: FakeIssuer, sender: Sender) -> None:
    tokens = [issuer.token(sub=f"u{number}") for number in range(20)]
    found = await asyncio.gather(*(sender.keys.identify(token.encode()) for token in tokens))

    assert [each.name for each in found] == [f"oidc:u{number}" for number in range(20)]
    assert issuer.fetched == 1


async def test_a_withdrawn_key_ends_its_tokens(issuer: FakeIssuer, sender: Sender) -> None:
    withdrawn, kept = issuer.token("a"), issuer.token("e", algorithm="ES256")
    for token in (withdrawn, kept):
        await sender.keys.identify(token.encode())
    del issuer.keys["a"]
    sender.clock.now += REFRESH_S
    await sender.keys.identify(kept.encode())  # the fetch goes on beside
    await until(
        lambda: issuer.fetched == 2 and sender.oidc.cached(hashlib.sha256(kept.encode()).digest()) is None
    )

    assert (await sender.refusal(withdrawn)).status == 401
    assert (await sender.keys.identify(kept.encode())).name == "oidc:alice"


async def test_a_withdrawn_key_ends_new_tokens_too(issuer: FakeIssuer, sender: Sender) -> None:
    withdrawn = [issuer.token(sub=f"u{number}").encode() for number in range(2)]
    await sender.keys.identify(issuer.token().encode())
    del issuer.keys["a"]
    sender.clock.now += REFRESH_S
    await sender.keys.identify(withdrawn[0])  # the fetch goes on beside
    await until(lambda: sender.oidc.cached(hashlib.sha256(withdrawn[0]).digest()) is None)

    assert (await sender.refusal(withdrawn[1].decode())).status == 401


async def test_a_removed_team_ends_its_tokens(issuer: FakeIssuer, tmp_path: Path) -> None:
    sender = Sender(issuer, tmp_path, claims={"team": "team"})
    token = issuer.token(team="shop")
    await sender.keys.identify(token.encode())
    (tmp_path / "keys.yaml").write_text("keys: [{name: web, key: sk-web}]\nteams: {search: {}}")
    sender.keys = ApiKeyFile(str(tmp_path / "keys.yaml"))
    sender.keys.oidc = sender.oidc

    assert (await sender.refusal(token)).code == "team_not_allowed"


async def test_known_keys_stay_while_the_issuer_is_down(
    issuer: FakeIssuer, sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    await sender.keys.identify(issuer.token().encode())
    issuer.down = True
    for _ in range(3):
        sender.clock.now += REFRESH_S
        await sender.refusal(issuer.token("x", RSA_KEYS[1]))
        assert (await sender.keys.identify(issuer.token(sub="bob").encode())).name == "oidc:bob"

    assert issuer.fetched == 4
    assert sum("cannot be fetched" in record.message for record in caplog.records) == 1


async def test_an_issuer_that_is_down_from_the_start_is_503(issuer: FakeIssuer, sender: Sender) -> None:
    issuer.down = True
    error = await sender.refusal(issuer.token())
    issuer.down = False
    sender.clock.now += 5.0

    assert (error.status, error.code, error.headers["Retry-After"]) == (503, "issuer_unavailable", "5")
    assert (await sender.keys.identify(issuer.token().encode())).name == "oidc:alice"


async def test_a_configuration_of_another_issuer_is_not_used(issuer: FakeIssuer, sender: Sender) -> None:
    issuer.issuer = "https://evil.example"

    assert (await sender.refusal(issuer.token())).status == 503
    assert issuer.fetched == 0


async def test_remembered_tokens_are_bounded(
    issuer: FakeIssuer, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "_MOST", 4)
    tokens = [issuer.token(sub=f"u{number}").encode() for number in range(6)]
    for token in tokens:
        await sender.keys.identify(token)

    known = [sender.oidc.cached(hashlib.sha256(token).digest()) is not None for token in tokens]
    assert known == [False, False, True, True, True, True]
    assert (await sender.keys.identify(tokens[0])).name == "oidc:u0"


async def test_batches_of_an_unknown_caller_wait_for_a_token(issuer: FakeIssuer, sender: Sender) -> None:
    with pytest.raises(ApiError) as caught:
        sender.keys.named("oidc:alice")
    await sender.keys.identify(issuer.token().encode())

    assert (caught.value.status, caught.value.code) == (503, "caller_unknown")
    assert sender.keys.named("oidc:alice").name == "oidc:alice"


async def test_rights_of_a_token_hold_downstream(issuer: FakeIssuer, tmp_path: Path) -> None:
    sender = Sender(issuer, tmp_path, models=["org/*"])
    server = Server(api_keys=sender.keys)
    headers = {"Authorization": f"bearer {issuer.token()}"}
    reply = await server.http.post(
        "/v1/chat/completions", json={"model": "tide", "messages": []}, headers=headers
    )
    models = (await server.http.get("/v1/models", headers=headers)).json()["data"]

    assert error_of(reply)["code"] == "model_not_allowed"
    assert [each["id"] for each in models] == ["org/embed"]
