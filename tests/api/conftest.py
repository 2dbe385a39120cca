from collections.abc import AsyncIterator

import pytest

from tests.api.server import Server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    async with made.http:
        yield made
