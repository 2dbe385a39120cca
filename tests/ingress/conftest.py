from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.ingress.fleet import Fleet


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(stack)
