"""The tokens of a real engine's usage: those of OpenAI's `usage`, however a client asks and leaves."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from serve_app.api.engine_client import Operation
from serve_app.engine.local_client import LocalEngine
from serve_app.ledger.meter import UsageMeter
from serve_app.ledger.usage import Account, Amounts
from serve_app.settings.caller import Caller
from tests.engine.calls import engine_call
from tests.engine.streams import asked, chat, continued, events, hear

STORY = chat("Write a story about the sea.", max_tokens=50, ignore_eos=True)
ANYONE = Account("tide", "", "standard")


@pytest.fixture
def meter(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[UsageMeter]:
    meter = UsageMeter("tide", 1, 0.0)
    meter.serve({})
    monkeypatch.setattr(engine, "meter", meter)
    return meter


def tokens(amounts: Amounts) -> tuple[int, int, int]:
    return amounts.requests, amounts.prompt_tokens, amounts.completion_tokens


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        STORY,
        chat("Hello", max_tokens=8, n=3, temperature=1),
        ("completions", {"prompt": ["The sea", "The moon and"], "max_tokens": 5}),
    ],
    ids=["chat", "n", "two prompts"],
)
async def test_whole_answers_count_as_in_openais_usage(
    engine: LocalEngine, meter: UsageMeter, operation: Operation, body: dict[str, Any]
) -> None:
    document = json.dumps({"temperature": 0, **body}).encode()
    caller = Caller("alice", "background")

    async with engine.call(engine_call(operation, document, "r-1", caller=caller)) as reply:
        usage = json.loads(reply.body)["usage"]
    used = meter.take()[Account("tide", "alice", "background")]

    assert tokens(used) == (1, usage["prompt_tokens"], usage["completion_tokens"])


@pytest.mark.parametrize(
    ("operation", "body"),
    [STORY, chat("Hi", max_tokens=20, vllm_xargs={"mine": 1})],
    ids=["can move", "cannot move"],
)
async def test_streams_count_as_in_openais_usage(
    engine: LocalEngine, meter: UsageMeter, operation: Operation, body: dict[str, Any]
) -> None:
    async with engine.call(asked(operation, body)) as reply:
        assert reply.stream is not None
        chunks = [chunk async for chunk in reply.stream]
    usage = events(chunks)[-1]["usage"]

    assert tokens(meter.take()[ANYONE]) == (1, usage["prompt_tokens"], usage["completion_tokens"])


async def test_a_moved_stream_counts_once(engine: LocalEngine, meter: UsageMeter) -> None:
    whole = await hear(engine, asked(*STORY))
    first = meter.take()[ANYONE]
    cuts = whole.cuts()
    cut = cuts[len(cuts) // 2]
    delivered = whole.told_before[cut]

    await continued(engine, *STORY, whole, cut)
    rest = meter.take()[ANYONE]

    assert tokens(first) == (1, 15, 50)
    assert tokens(rest) == (0, 0, 50 - delivered)


async def test_a_stream_left_early_counts_what_was_sent(engine: LocalEngine, meter: UsageMeter) -> None:
    async with engine.call(asked(*STORY)) as reply:
        assert reply.stream is not None
        assert reply.delivered is not None
        await anext(reply.stream)
        await anext(reply.stream)
        sent = reply.delivered.tokens

    assert tokens(meter.take()[ANYONE]) == (1, 15, sent)


async def test_tokenization_uses_nothing(engine: LocalEngine, meter: UsageMeter) -> None:
    async with engine.call(engine_call("tokenize", b'{"prompt":"sea"}', "r-1")):
        pass

    assert "used" not in {account.state for account in meter.take()}
