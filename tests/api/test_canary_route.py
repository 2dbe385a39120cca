"""`PUT /autoscaling/canary`: who may change the share of a version, and what is refused."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.http_api import create_app
from serve_app.settings.tree import HttpSettings
from serve_app.wire.versions import Share
from tests.api.server import StubObserver, error_of

CHANGE = {"model": "qwen", "share": 0.25}


class Changes:
    """A server that notes changes of shares, and its client."""

    def __init__(self, keys: ApiKeyFile | None = None, on: str = "127.0.0.1", key: str = "") -> None:
        self.made: list[tuple[Any, ...]] = []
        app = create_app(
            [], StubObserver(), HttpSettings(), api_keys=keys, listens_on=on, set_share=self._set
        )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        transport = httpx.ASGITransport(app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)

    async def _set(
        self, model: str, version: str | None, share: float, shadow: float | None, sender: str
    ) -> Share:
        self.made.append((model, version, share, shadow, sender))
        return Share(share, shadow or 0.0)

    async def put(self, body: object) -> httpx.Response:
        async with self.http as http:
            return await http.put("/autoscaling/canary", json=body)


@pytest.mark.parametrize(
    ("key", "status", "sender"), [("boss", 200, "API key 'boss'"), ("team", 403, None), ("none", 401, None)]
)
async def test_only_admin_keys_change_shares(
    tmp_path: Path, key: str, status: int, sender: str | None
) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n  - {name: boss, key: boss, admin: true}\n  - {name: team, key: team}\n")
    changes = Changes(ApiKeyFile(str(path)), key=key)

    assert (await changes.put(CHANGE)).status_code == status
    assert changes.made == ([("qwen", None, 0.25, None, sender)] if sender else [])


@pytest.mark.parametrize(("address", "status"), [("127.0.0.1", 200), ("0.0.0.0", 403)])
async def test_without_keys_only_a_loopback_server_changes_shares(address: str, status: int) -> None:
    assert (await Changes(on=address).put(CHANGE)).status_code == status


@pytest.mark.parametrize(
    ("changed", "problem"), [({"share": 1.5}, "share"), ({"shadow": -0.1}, "shadow"), ({"other": 1}, "other")]
)
async def test_invalid_changes_name_their_field(changed: dict[str, Any], problem: str) -> None:
    changes = Changes()
    reply = await changes.put({**CHANGE, **changed})

    assert reply.status_code == 400
    assert problem in error_of(reply)["message"]
    assert not changes.made
