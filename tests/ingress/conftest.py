from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ingress.fleet import Fleet


@pytest.fixture(autouse=True)
async def _end_tasks() -> AsyncIterator[None]:
    """End the tasks that a test leaves. In a later test they would log, or end with an error."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    from tests.ingress.fleet import Fleet  # it imports Ray, which the tests of pure modules need not

    async with AsyncExitStack() as stack:
        yield Fleet(stack)
