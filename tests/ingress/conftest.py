from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from serve_app.ingress import relayed_request as relay
from serve_app.ingress import replica_set as replicas
from tests.ingress.fleet import Fleet


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(relay, "_BACKOFF_S", 0.0)
    async with AsyncExitStack() as stack:
        yield Fleet(stack)


@pytest.fixture(autouse=True)
def _own_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_sets", {})
