"""Lanes in a real engine core, and the client's own priority."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from serve_app.api.engine_client import Operation
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.local_client import LocalEngine
from serve_app.engine.sequence_lanes import lane_of
from serve_app.settings.caller import Caller, Lane
from tests.engine.calls import engine_call
from tests.engine.stub_engine_core import StubEngineCore, front_end, real_engine

STREAMS = 6  # for 4 places in the batch


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[LocalEngine]:
    """An engine with 4 places in its batch."""
    async with real_engine(max_num_seqs=4) as engine:
        yield engine


def request(caller: Caller, name: str, operation: Operation = "completions", **body: Any) -> EngineCall:
    document = {"model": "tide", "prompt": f"{name} and the sea", "temperature": 0, "ignore_eos": True} | body
    return engine_call(operation, msgspec.json.encode(document), name, time.perf_counter(), caller=caller)


async def answer(engine: LocalEngine, lane: Lane, name: str, tokens: int) -> str:
    async with engine.call(request(Caller(lane=lane), name, max_tokens=tokens)) as reply:
        text: str = msgspec.json.decode(reply.body)["choices"][0]["text"]
        return text


async def test_preempted_background_gives_the_same_greedy_tokens(engine: LocalEngine) -> None:
    names = [f"story {number}" for number in range(STREAMS)]
    undisturbed = [await answer(engine, "background", name, 20) for name in names]

    flood = [asyncio.create_task(answer(engine, "background", name, 20)) for name in names]
    for number in range(4):
        await answer(engine, "interactive", f"chat {number}", 5)
    assert not all(task.done() for task in flood)  # the chats did not wait for the flood

    assert await asyncio.gather(*flood) == undisturbed


@pytest.mark.parametrize("priority", [-(1 << 63), 0, (1 << 63) - 1])
@pytest.mark.parametrize("operation", ["completions", "chat_completions"])
async def test_clients_priority_does_not_count(operation: Operation, priority: int) -> None:
    core = StubEngineCore()
    async with front_end(core) as (_, client):
        messages = [{"role": "user", "content": "sea"}]
        body = {"messages": messages} if operation == "chat_completions" else {}
        for lane in ("background", "standard", "interactive"):
            asked = request(Caller("k", lane), lane, operation, **body, priority=priority, max_tokens=2)
            async with client.call(asked):
                pass

    assert [lane_of(sent.priority) for sent in core.requests] == ["background", "standard", "interactive"]


async def test_key_that_sends_much_goes_behind_one_that_sends_little() -> None:
    core = StubEngineCore()
    core.most_steps = 0
    async with front_end(core) as (_, client):

        async def send(key: str) -> None:
            async with client.call(request(Caller(key), key, max_tokens=2)):
                pass

        sent = [asyncio.create_task(send(key)) for key in ("much", "much", "much", "little")]
        while len(core.requests) < len(sent):
            await asyncio.sleep(0)
        for task in sent:
            task.cancel()
        await asyncio.gather(*sent, return_exceptions=True)

    first, second, third, little = [message.priority for message in core.requests]
    assert first == little < second < third


async def test_every_sequence_of_a_request_has_its_lane() -> None:
    core = StubEngineCore()
    async with front_end(core) as (_, client):
        asked = request(Caller(lane="background"), "n", n=3, temperature=1, max_tokens=2)
        async with client.call(asked):
            pass

    assert [lane_of(sent.priority) for sent in core.requests] == ["background"] * 3
