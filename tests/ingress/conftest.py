from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from serve_app.ingress import relayed_request as relay
from serve_app.ingress import replica_set as replicas
from tests.ingress.relaying import Fleet


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(replicas, "_sets", {})
    monkeypatch.setattr(relay, "_BACKOFF_S", 0.0)
    async with AsyncExitStack() as stack:
        yield Fleet(stack)
