from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.batch_server import BatchServer
from tests.api.server import Server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    async with made.http:
        yield made


@pytest.fixture
async def batches(tmp_path: Path) -> AsyncIterator[BatchServer]:
    made = BatchServer(tmp_path)
    async with made.http:
        yield made
