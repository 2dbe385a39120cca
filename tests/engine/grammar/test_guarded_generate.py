"""A structured output with a dead end that its compile job did not meet, on a real engine core."""

import json
from typing import Any

import pytest

from serve_app.api.engine_client import Operation
from serve_app.api.errors import ApiError
from serve_app.engine.local_client import LocalEngine
from tests.engine.calls import engine_call

WAYS_OUT = " | ".join(f'"{word}"' for word in ("yes", "no", "maybe", "sea", "tide", "ebb", "flow", "moon"))
DEAD_END = {"grammar": f'root ::= {WAYS_OUT} | [q] nothing\nnothing ::= nothing "a"'}
"""After a `q` no text matches. The compile job draws tokens, and draws one of the other words."""
INTO_IT = {"q": 100.0}
EITHER = {"q": 100.0, "n": 94.0}
"""Some choices of several meet the dead end, others end well."""
WARM = 2.0
"""The highest temperature. The model prefers an `n`, hence the bias against it."""
CHAT: tuple[Operation, dict[str, Any]] = (
    "chat_completions",
    {"messages": [{"role": "user", "content": "Will it rain?"}]},
)
TEXT: tuple[Operation, dict[str, Any]] = ("completions", {"prompt": "Will it rain?"})
TWO_PROMPTS: tuple[Operation, dict[str, Any]] = ("completions", {"prompt": ["Will it rain?", "Or snow?"]})
LOGPROBS: tuple[Operation, dict[str, Any]] = ("chat_completions", {**CHAT[1], "logprobs": True})


async def biased(client: LocalEngine, towards: dict[str, float]) -> dict[str, float]:
    """`towards` by token id."""
    bias = {}
    for text, amount in towards.items():
        asked = engine_call("tokenize", json.dumps({"prompt": text}).encode(), "t")
        async with client.call(asked) as reply:
            (token,) = json.loads(reply.body)["tokens"]
        bias[str(token)] = amount
    return bias


async def failures(client: LocalEngine, operation: Operation, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The errors that a client is told, by the status of the reply or within its stream."""
    request = engine_call(operation, json.dumps(body).encode(), "r-1")

    def write_now(data: bytes) -> bool:
        sent.append(data)
        return True

    sent: list[bytes] = []
    try:
        async with client.call(request) as reply:
            if reply.stream is None:
                return []
            async for chunk in reply.stream:
                sent.append(chunk)
                request.write_now = write_now
    except ApiError as error:
        return [json.loads(error.body())["error"] | {"status": error.status}]
    events = [line for line in b"".join(sent).split(b"\n") if line.startswith(b'data: {"error"')]
    return [json.loads(event[len(b"data: ") :])["error"] for event in events]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("choices", "towards"), [(1, INTO_IT), (16, EITHER)], ids=["one", "some"])
@pytest.mark.parametrize(
    ("operation", "body"), [CHAT, LOGPROBS, TWO_PROMPTS], ids=["chat", "logprobs", "prompts"]
)
async def test_a_dead_end_of_any_choice_is_the_clients_error(
    engine: LocalEngine,
    operation: Operation,
    body: dict[str, Any],
    choices: int,
    towards: dict[str, float],
    stream: bool,
) -> None:
    fields = {
        "n": choices,
        "stream": stream,
        "max_tokens": 8,
        "temperature": WARM,
        "seed": 1,
        "structured_outputs": DEAD_END,
    }

    found = await failures(engine, operation, {**body, **fields, "logit_bias": await biased(engine, towards)})

    assert [(error["code"], error["param"]) for error in found] == [("invalid_value", "structured_outputs")]
    assert all(error.get("status", 400) == 400 for error in found)


@pytest.mark.parametrize(("operation", "body"), [CHAT, TEXT], ids=["chat", "text"])
async def test_a_dead_end_of_one_choice_ends_the_others(
    engine: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    endless = {
        "grammar": f'root ::= {WAYS_OUT} | [q] nothing | "n" more\nnothing ::= nothing "a"\nmore ::= "n" more'
    }
    fields = {
        "n": 16,
        "stream": True,
        "max_tokens": 400,
        "temperature": WARM,
        "seed": 1,
        "structured_outputs": endless,
    }

    found = await failures(engine, operation, {**body, **fields, "logit_bias": await biased(engine, EITHER)})

    assert [error["param"] for error in found] == ["structured_outputs"]
    assert not engine._engine.output_processor.has_unfinished_requests()
