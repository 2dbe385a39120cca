"""The error with which a call is refused."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from serve_app.api.errors import ApiError
from tests.timing import LIMIT_S


def refusal(call: Callable[..., object], *given: object) -> ApiError:
    """Call, and return the error."""
    with pytest.raises(ApiError) as caught:
        call(*given)
    return caught.value


async def refusal_of(asked: Awaitable[object]) -> ApiError:
    """Wait for the error."""
    with pytest.raises(ApiError) as caught:
        async with asyncio.timeout(LIMIT_S):
            await asked
    return caught.value
