from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.api.batch_server import BatchServer
    from tests.api.server import Server

# Imports of servers take a second, and of OpenAI's client three: only tests that use them pay for them.


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    from tests.api.server import Server

    made = Server()
    async with made.http:
        yield made


@pytest.fixture
async def batches(tmp_path: Path) -> AsyncIterator[BatchServer]:
    from tests.api.batch_server import BatchServer

    made = BatchServer(tmp_path)
    async with made.http:
        yield made
