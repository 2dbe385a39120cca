"""Streams of every parser that vLLM ships, with merged outputs, cut anywhere, and continued."""

import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pytest
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from serve_app.api.engine_client import Operation
from serve_app.api.errors import ApiError
from serve_app.engine.chat_operations import Serving
from serve_app.engine.local_client import LocalEngine
from tests.engine import reasoning_until_dot
from tests.engine.model_formats import NOT_HERE, REASONING, TOOL_CALLS, write_model
from tests.engine.scripted_core import ScriptedCore
from tests.engine.streams import asked, events, hear
from tests.engine.stub_engine_core import front_end, use_parser

SEEDS = [range(1), pytest.param(range(1, 30), marks=pytest.mark.long, id="many")]
TOOL = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
}
FORMATS = [("tool_parser_name", name) for name in TOOL_CALLS]
FORMATS += [("reasoning_parser_name", name) for name in REASONING]
EVERY_PARSER = pytest.mark.parametrize(
    ("kind", "name"), FORMATS, ids=[f"{kind[:4]} {name}" for kind, name in FORMATS]
)


@dataclass
class Model:
    """A model that writes in one format after the other."""

    serving: Serving
    client: LocalEngine
    core: ScriptedCore

    def write(self, kind: str, name: str) -> list[int]:
        """Have the model write the format's text. Returns its tokens."""
        use_parser(self.serving, **{kind: name})
        tokenizer = self.serving.engine.get_tokenizer()
        text = (TOOL_CALLS if kind == "tool_parser_name" else REASONING)[name]
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


@pytest.fixture(scope="module")
async def model(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Model]:
    core = ScriptedCore()
    folder = write_model(tmp_path_factory.mktemp("formats"))
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "deepseek_r1"}
    async with front_end(core, model=folder, max_model_len=512, **parsers) as (serving, client):
        core.processor = serving.engine.output_processor
        yield Model(serving, client, core)


def body_of(operation: Operation) -> dict[str, Any]:
    tool: dict[str, Any] = {"type": "function", "function": TOOL}
    if operation == "responses":
        return {"input": "The weather?", "max_output_tokens": 300, "tools": [{**TOOL, "type": "function"}]}
    if operation == "messages":
        tool = {"name": TOOL["name"], "input_schema": TOOL["parameters"]}
    return {
        "model": "tide",
        "messages": [{"role": "user", "content": "The weather?"}],
        "max_tokens": 300,
        "tools": [tool],
        "chat_template_kwargs": {"thinking": True, "enable_thinking": True, "reasoning_effort": "high"},
    }


def test_every_parser_of_vllm_has_a_text() -> None:
    tools, reasoning = ToolParserManager.list_registered(), ReasoningParserManager.list_registered()
    own = {reasoning_until_dot.PARSER}  # if its plug-in was imported by other tests
    assert ({*tools} - {*TOOL_CALLS} | {*reasoning} - {*REASONING}) - own == NOT_HERE.keys()


@EVERY_PARSER
async def test_each_text_is_read_by_its_parser(model: Model, kind: str, name: str) -> None:
    model.core.script = [[token] for token in model.write(kind, name)]
    heard = await hear(model.client, asked("chat_completions", body_of("chat_completions")))

    deltas = [choice["delta"] for event in events(heard.chunks) for choice in event["choices"]]
    calls = [call["function"].get("name") for delta in deltas for call in delta.get("tool_calls") or ()]
    assert "get_weather" in calls or any(delta.get("reasoning") for delta in deltas) or name in _SILENT


@pytest.mark.parametrize("seeds", SEEDS)
@EVERY_PARSER
async def test_a_stream_of_merged_outputs_survives_losses_anywhere(
    model: Model, kind: str, name: str, seeds: range
) -> None:
    """Four engines run the stream. The client gets the events of one engine that runs all of it."""
    for seed in seeds:
        rng = random.Random(f"{kind} {name} {seed}")
        operations: list[Operation] = ["chat_completions", "messages", "responses"]
        operation = rng.choice(operations[: 2 if name in _RAISE_IN_RESPONSES else 3])
        body = body_of(operation)
        if operation == "chat_completions":
            body["stream_interval"] = rng.choice([1, 1, 3])
        tokens = model.write(kind, name)
        single = (kind, name) == ("reasoning_parser_name", "hunyuan_a13b")  # it raises at several tokens
        model.core.script = [[token] for token in tokens] if single else divided(tokens, rng)
        model.core.merges = rng.random() < 0.5
        whole = await hear(model.client, asked(operation, body))

        if body.get("stream_interval", 1) == 1:
            assert [tokens for _, tokens in whole.outputs] == model.core.script[: len(whole.outputs)]
        fails = len(whole.tokens) < len(tokens)  # such as at an output with two calls, in Responses
        heard, last = whole, 0
        for moves in (1, 2, 3):
            cuts = [cut for cut in heard.cuts() if cut > last]
            if not cuts:
                break
            last = rng.choice(cuts)
            try:
                rest = await hear(model.client, asked(operation, body, heard.continuation(last, moves)))
            except ApiError:  # it fails at the first output
                assert fails
                break
            heard = heard.then(last, rest)
            for got, expected in zip_longest(fixed(heard.chunks), fixed(whole.chunks)):
                assert got == expected, (operation, seed, last)


def divided(tokens: list[int], rng: random.Random) -> list[list[int]]:
    """Divide tokens into outputs: most have one, and some have up to nine."""
    outputs = []
    while tokens:
        size = rng.choice([1, 1, 1, 1, rng.randint(2, 9)])
        outputs.append(tokens[:size])
        tokens = tokens[size:]
    return outputs


def fixed(chunks: list[bytes]) -> list[Any]:
    """Return the documents of the events without times and random ids."""

    def plain(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: plain(item, name) for name, item in value.items() if name not in _TIMES}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return bool(value) if key in _IDS else value

    lines = b"".join(chunks).split(b"\n")
    return [plain(json.loads(line[6:])) for line in lines if line.startswith(b"data: {")]


_TIMES = ("created", "created_at", "latency")
_IDS = ("id", "call_id", "signature")
_RAISE_IN_RESPONSES = ("dots", "hy_v3", "hy_v4", "step3")
"""They raise AttributeError at a tool of Responses."""
_SILENT = ("phi4_mini_json", "hunyuan_a13b", "minimax_m2_append_think")
"""The first streams no calls. The others know their marks by ids of their own vocabulary, or keep them."""
