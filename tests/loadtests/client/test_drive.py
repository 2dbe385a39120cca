"""A cancellation ends a load at whatever moment it comes."""

import asyncio
import time

import pytest

from loadtests.client.drive import drive
from loadtests.client.prompts import Target
from loadtests.record import Record
from loadtests.scenario import Client

TARGET = Target(
    url="http://127.0.0.1:9",
    headers={},
    model="m",
    token_ids=(1, 2, 3),
    words=(),
    tokens_per_word=1.0,
    seed=0,
)


async def cancelled_after(turns: int) -> bool:
    """Cancel a load without requests after so many turns of the loop; whether it was still running."""
    records: list[Record] = []
    load = asyncio.create_task(drive([], TARGET, Client(), time.monotonic(), records.append, asyncio.Event()))
    for _ in range(turns):
        await asyncio.sleep(0)
    if load.done():
        return False
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    return True


async def test_a_cancelled_load_is_cancelled_at_every_turn() -> None:
    turns = 0
    while await cancelled_after(turns):
        turns += 1

    assert turns > 3
