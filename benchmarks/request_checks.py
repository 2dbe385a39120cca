"""Measure the checks of a caller and of its budgets: `python -m benchmarks.request_checks`."""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import jwt
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.budgets import Budgets, Prices
from serve_app.api.engine_client import EngineRequest
from serve_app.api.oidc import Oidc
from serve_app.ledger.budgets import BudgetStore
from serve_app.settings.caller import ANYONE, Caller
from serve_app.settings.oidc import OidcSettings
from serve_app.settings.storage import TokenPrices

_KEYS = 1000
_ROUNDS = 9
_ISSUER = "http://localhost:1/"


async def per_call_us(calls: int, call: Callable[[], Awaitable[object]]) -> float:
    """Return the least CPU time of one call in microseconds, over rounds of so many calls."""
    rounds = []
    for _ in range(_ROUNDS):
        began = time.thread_time()
        for _ in range(calls):
            await call()
        rounds.append((time.thread_time() - began) / calls * 1e6)
    return min(rounds)


def _token(key: rsa.RSAPrivateKey, size: int) -> bytes:
    now = int(time.time())
    claims = {"iss": _ISSUER, "aud": "tide", "sub": "alice", "exp": now + 3600, "team": "t7", "x": "g" * size}
    return jwt.encode(claims, key, "RS256", {"kid": "a"}).encode()


async def measure(calls: int, folder: Path) -> dict[str, float]:
    """Return the microseconds of each check, by its name."""
    budget = {"usd": 1e6, "per": "month"}
    keys = [
        {"name": f"k{number}", "hash": f"sha256:{sha256(b'%d' % number).hexdigest()}", "budget": budget}
        for number in range(_KEYS)
    ]
    file = folder / "keys.yaml"
    file.write_text(
        yaml.safe_dump({"keys": keys, "teams": {f"t{n}": {"budget": budget} for n in range(100)}})
    )
    found = ApiKeyFile(str(file))
    results = {"a key": await per_call_us(calls, partial(found.identify, b"7"))}

    signing = rsa.generate_private_key(65537, 2048)
    issuer = Oidc(OidcSettings(issuer=_ISSUER, audience="tide"), lambda: found.teams)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(signing.public_key()))
    issuer.use([public | {"kid": "a"}])
    found.oidc = issuer
    results["a key, with OIDC on"] = await per_call_us(calls, partial(found.identify, b"7"))
    for name, size in (("1 KB", 300), ("8 KB", 5700)):
        token = _token(signing, size)
        check = partial(issuer.check, token, sha256(token).digest())
        results[f"a new token of {name}"] = await per_call_us(calls // 20, check)
        results[f"a checked token of {name}"] = await per_call_us(calls, partial(found.identify, token))

    store = BudgetStore(f"sqlite:///{folder}/usage.db", "bench", "i0")
    prices = Prices({}, {"tide": TokenPrices(prompt=1.0, completion=4.0)})
    budgets = Budgets(store, prices, lambda: found.budgets)
    request = EngineRequest("chat_completions", b"x" * 4000, "r", model="tide", caller=ANYONE)
    request.outcome = "ok"

    async def reserve(names: tuple[str, ...]) -> None:
        use = await budgets.reserve(names, request, 256, 8192)
        if use is not None:
            use.settle(request)

    both = Caller("k7", budgets=("key/k7", "team/t7")).budgets
    for name, chosen in (("no budget", ()), ("two budgets", both)):
        for _ in range(4):  # until the lease covers a round
            microseconds = await per_call_us(calls, partial(reserve, chosen))
            await budgets.turn()
        results[f"a reservation, {name}"] = microseconds
    store.close()
    return results


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5000, help="calls of a round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = asyncio.run(measure(options.calls, Path(folder)))
    print(f"| check | CPU time in µs, least of {_ROUNDS} rounds |\n|---|---|")
    for name, microseconds in results.items():
        print(f"| {name} | {microseconds:.1f} |")


if __name__ == "__main__":
    main()
