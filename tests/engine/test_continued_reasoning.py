"""Streams of a model that reasons first, cut and continued: budgets and grammars know where it stands."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serve_app.engine.local_client import LocalEngine
from tests.engine import reasoning_until_dot
from tests.engine.calls import engine_call
from tests.engine.streams import OSLO, asked, at_each, chat, continued, differences, events, hear, strict
from tests.engine.stub_engine_core import real_engine


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[LocalEngine]:
    parser = {"reasoning_parser_plugin": reasoning_until_dot.__file__}
    async with real_engine(reasoning_parser=reasoning_until_dot.PARSER, engine_args=parser) as engine:
        yield engine


def reasoning(chunks: list[bytes]) -> str:
    deltas = [choice["delta"] for event in events(chunks) for choice in event["choices"]]
    return "".join(delta.get("reasoning") or "" for delta in deltas)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 60, "ignore_eos": True},
        {"max_tokens": 60, "ignore_eos": True, "thinking_token_budget": 7},
        {"max_tokens": 60, "ignore_eos": True, "thinking_token_budget": 0},
        {"max_tokens": 90, "response_format": strict(OSLO)},
        {"max_tokens": 90, "response_format": strict(OSLO), "thinking_token_budget": 5},
    ],
    ids=["reasoning", "budget", "no budget", "json", "json with budget"],
)
async def test_reasoning_goes_on_and_ends_where_it_would_have(
    client: LocalEngine, fields: dict[str, Any]
) -> None:
    operation, body = chat("Write a story about the sea.", **fields)
    whole = await hear(client, asked(operation, body))
    cuts = whole.cuts()

    if fields.get("thinking_token_budget") != 0:
        assert reasoning(whole.chunks)
    chosen = {*cuts[1:9:3], *cuts[:: 1 + len(cuts) // 3], cuts[-1]}
    for cut, again in await at_each(chosen, lambda cut: continued(client, operation, body, whole, cut)):
        assert differences(whole, again) == {}, cut
        assert reasoning(again.chunks) == reasoning(whole.chunks), cut


MESSAGE = {"messages": [{"role": "user", "content": "Write a story about the sea."}], "max_tokens": 60}


async def test_a_thinking_block_begins_with_its_signature(client: LocalEngine) -> None:
    document = json.dumps({"stream": True, "model": "tide", "temperature": 0, **MESSAGE}).encode()

    frames = b"".join((await hear(client, engine_call("messages", document, "r-1"))).chunks)

    begun = next(
        line for line in frames.split(b"\n") if line.startswith(b'data: {"type":"content_block_start"')
    )
    assert json.loads(begun[6:])["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
