"""Every kind of content of the three APIs is in the prompt of the engine, or is refused by its path."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from transformers import AutoTokenizer

from serve_app.api.engine_client import Operation
from serve_app.api.errors import ApiError
from serve_app.engine.local_client import LocalEngine
from serve_app.weights import embedded_model_path
from tests.engine.calls import engine_call
from tests.engine.stub_engine_core import StubEngineCore, front_end
from tests.engine.tiny_models import vision_language_model

# Each message on a line of its own: the role, the reasoning, the content and the calls of tools.
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.reasoning %}({{ message.reasoning }}) {% endif %}{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}"
    "{% endfor %}|{% endfor %}"
)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
URL = f"data:image/png;base64,{PNG}"
IMAGE_TOKENS = 4
HI: dict[str, Any] = {"role": "user", "content": "hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
PICTURE = {"type": "image_url", "image_url": {"url": URL}}
INPUT_IMAGE = {"type": "input_image", "image_url": URL}
FILE = {"type": "file", "file_id": "f"}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "sea"}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "a"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
}


def chat(*messages: dict[str, Any], **fields: Any) -> tuple[Operation, dict[str, Any]]:
    return "chat_completions", {"messages": [HI, *messages], "max_tokens": 3, **fields}


def message(*blocks: Any, role: str = "user", **fields: Any) -> tuple[Operation, dict[str, Any]]:
    messages = [HI, {"role": role, "content": list(blocks)}]
    return "messages", {"messages": messages, "max_tokens": 3, **fields}


def result(*blocks: Any) -> tuple[Operation, dict[str, Any]]:
    return message({"type": "tool_result", "tool_use_id": "t", "content": list(blocks)})


def response(*items: Any, **fields: Any) -> tuple[Operation, dict[str, Any]]:
    return "responses", {"input": [HI, *items], "max_output_tokens": 3, **fields}


def text(words: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, kind if kind in ("refusal", "thinking") else "text": words}


def answer(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts), **fields}


def output(*parts: Any, kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": "c", "output": list(parts)}


class Engine:
    """vLLM's front end, and the prompts that its engine core gets."""

    def __init__(self, client: LocalEngine, core: StubEngineCore, tokenizer: Any) -> None:
        self._client, self._core, self.tokenizer = client, core, tokenizer

    async def prompt(self, operation: Operation, body: dict[str, Any]) -> tuple[str, int]:
        """Return the prompt after the first message, and the number of its tokens."""
        self._core.requests.clear()
        call = engine_call(operation, json.dumps({"model": "tide", **body}).encode(), "r-1")
        async with self._client.call(call):
            (request,) = self._core.requests
            words = self.tokenizer.decode(request.prompt_token_ids)
            return words.replace("user: hi|", "", 1), len(request.prompt_token_ids)

    async def refusal(self, operation: Operation, body: dict[str, Any]) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await self.prompt(operation, body)
        return caught.value


@pytest.fixture(scope="module", params=["text", "images"])
async def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    folder = tmp_path_factory.mktemp("prompts")
    (folder / "template.jinja").write_text(TEMPLATE)
    fields: dict[str, Any] = {"chat_template": str(folder / "template.jinja"), "max_model_len": 512}
    path = str(embedded_model_path())
    if request.param == "images":
        path = fields["model"] = vision_language_model(folder)
    core = StubEngineCore()
    async with front_end(core, **fields) as (_, client):
        yield Engine(client, core, AutoTokenizer.from_pretrained(path))


@pytest.mark.parametrize(
    ("asked", "prompt"),
    [
        (chat({"role": "user", "content": [text("one"), text("two")]}), "user: one\ntwo|"),
        (chat({"role": "developer", "content": [text("one")]}), "system: one|"),
        (chat({"role": "system", "content": [text("one"), text("two")]}), "system: one\ntwo|"),
        (
            chat(CALLED, {"role": "tool", "tool_call_id": "c", "content": [text("one"), text("two")]}),
            'assistant: f{"a": 1}|tool: one\ntwo|',
        ),
        (chat({"role": "assistant", "content": [text("one"), text("no", "refusal")]}), "assistant: one\nno|"),
        (chat({"role": "assistant", "content": None, "refusal": "no"}), "assistant: no|"),
        (chat({"role": "assistant", "refusal": "no"}), "assistant: no|"),
        (chat({"role": "assistant", "content": "one", "refusal": "no"}), "assistant: one\nno|"),
        (chat({"role": "assistant", "content": "one", "refusal": None}), "assistant: one|"),
        (chat({"role": "assistant", "content": "one", "reasoning": "why"}), "assistant: (why) one|"),
        (chat({"role": "assistant", "content": "one", "reasoning_content": "why"}), "assistant: (why) one|"),
        (message(text("one"), text("two")), "user: one\ntwo|"),
        (message(text("why", "thinking"), text("one"), role="assistant"), "assistant: (why) one|"),
        (
            message({"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}, role="assistant"),
            'assistant: f{"a": 1}|',
        ),
        (result(text("one"), text("two")), "tool: one\ntwo|"),
        (result(text("one"), {"type": "tool_reference", "tool_name": "f"}), "tool: one|tool: f|"),
        (message(text("one"), role="system"), "system: one|"),
        (
            response({"role": "user", "content": [text("one", "input_text"), text("two", "input_text")]}),
            "user: one\ntwo|",
        ),
        (response({"role": "developer", "content": [text("one", "input_text")]}), "system: one|"),
        (response(answer(text("one", "output_text"), text("two", "output_text"))), "assistant: onetwo|"),
        (response(answer(text("no", "refusal"))), "assistant: no|"),
        (response(answer(text("one", "output_text"), text("no", "refusal"))), "assistant: oneno|"),
        (response(answer(), answer(text("one", "output_text"))), "assistant: |assistant: one|"),
        (response({"role": "assistant", "content": "one"}), "assistant: one|"),
        (
            response(CALL, output(text("one", "input_text"), text("two", "input_text"))),
            'assistant: f{"a": 1}|tool: one\ntwo|',
        ),
        (
            response(
                CUSTOM_CALL,
                output(text("one", "input_text"), text("two", "input_text"), kind="custom_tool_call_output"),
            ),
            'assistant: f{"input": "a"}|tool: one\ntwo|',
        ),
        (
            response(
                {"type": "reasoning", "summary": [text("why", "summary_text"), text("not", "summary_text")]},
                answer(text("one", "output_text")),
            ),
            "assistant: (why\nnot) one|",
        ),
        (
            response(
                {
                    "type": "reasoning",
                    "id": "r",
                    "summary": [],
                    "encrypted_content": None,
                    "content": [text("why", "reasoning_text"), text("not", "reasoning_text")],
                },
                answer(text("one", "output_text")),
            ),
            "assistant: (why\nnot) one|",
        ),
    ],
)
async def test_all_text_of_a_conversation_is_in_the_prompt(
    engine: Engine, asked: tuple[Operation, dict[str, Any]], prompt: str
) -> None:
    words, _ = await engine.prompt(*asked)

    assert words == prompt


@pytest.mark.parametrize("engine", ["images"], indirect=True)
@pytest.mark.parametrize(
    "asked",
    [
        chat({"role": "user", "content": [PICTURE]}),
        chat(CALLED, {"role": "tool", "tool_call_id": "c", "content": [PICTURE]}),
        message(IMAGE),
        message({"type": "image", "source": {"type": "url", "url": URL}}),
        result(text("one"), IMAGE),
        response({"role": "user", "content": [INPUT_IMAGE]}),
        response(CALL, output(INPUT_IMAGE)),
        response(CUSTOM_CALL, output(INPUT_IMAGE, kind="custom_tool_call_output")),
    ],
)
async def test_every_image_adds_its_tokens(engine: Engine, asked: tuple[Operation, dict[str, Any]]) -> None:
    prompt, tokens = await engine.prompt(*asked)

    without = len(engine.tokenizer.encode("user: hi|" + prompt.replace("<image>", "")))
    assert tokens - without == IMAGE_TOKENS


@pytest.mark.parametrize("engine", ["images"], indirect=True)
@pytest.mark.parametrize(
    ("asked", "path"),
    [
        (message({"type": "image", "source": FILE}), "messages[1].content[0].source.type"),
        (message({"type": "image", "source": {"type": "base64"}}), "messages[1].content[0].source.data"),
        (message({"type": "image"}), "messages[1].content[0].source"),
        (result({"type": "image", "source": FILE}), "messages[1].content[0].content[0].source.type"),
        (
            response({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}),
            "input[1].content[0].image_url",
        ),
        (
            response({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}),
            "input[1].content[0].type",
        ),
        (response(CALL, output({"type": "input_file", "file_id": "f"})), "input[2].output[0].type"),
        (chat({"role": "user", "content": [{"type": "file", "file": FILE}]}), "messages[1].content[0].type"),
    ],
)
async def test_an_image_that_cannot_be_read_is_refused_by_its_path(
    engine: Engine, asked: tuple[Operation, dict[str, Any]], path: str
) -> None:
    assert (await engine.refusal(*asked)).param == path


@pytest.mark.parametrize("engine", ["text"], indirect=True)
@pytest.mark.parametrize(
    ("asked", "path"),
    [
        (
            chat({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}),
            "messages[1].function_call",
        ),
        (chat({"role": "assistant", "audio": {"id": "a"}}), "messages[1].audio"),
        (
            chat({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}),
            "messages[1].content[0]",
        ),
        (chat(functions=[{"name": "f"}]), "functions"),
        (chat(web_search_options={}), "web_search_options"),
        (chat(audio={"voice": "a", "format": "wav"}, modalities=["text", "audio"]), "audio"),
        (chat(guided_json={"type": "object"}), "guided_json"),
        (message(DOCUMENT), "messages[1].content[0].type"),
        (result(DOCUMENT), "messages[1].content[0].content[0].type"),
        (
            result({"type": "search_result", "source": "s", "title": "t", "content": [text("one")]}),
            "messages[1].content[0].content[0].type",
        ),
        (result({"type": "text"}), "messages[1].content[0].content[0].text"),
        (result({"type": "text", "text": 5}), "messages[1].content[0].content[0].text"),
        (result({"type": "tool_reference"}), "messages[1].content[0].content[0].tool_name"),
        (result({"type": ["text"]}), "messages[1].content[0].content[0].type"),
        (result(IMAGE), "messages[1].content[0].content[0]"),
        (message({"type": "text"}), "messages[1].content[0].text"),
        (message({"type": "container_upload", "file_id": "f"}), "messages[1].content[0].type"),
        (
            message({"type": "redacted_thinking", "data": "x"}, role="assistant"),
            "messages[1].content[0].type",
        ),
        (
            message(
                {"type": "server_tool_use", "id": "t", "name": "web_search", "input": {}}, role="assistant"
            ),
            "messages[1].content[0].type",
        ),
        (message(text("why", "thinking")), "messages[1].content[0].type"),
        (message({"type": "tool_use", "id": "t", "name": "f", "input": {}}), "messages[1].content[0].type"),
        (
            message({"type": "tool_result", "tool_use_id": "t"}, role="assistant"),
            "messages[1].content[0].type",
        ),
        (message({"type": "tool_reference", "tool_name": "f"}), "messages[1].content[0].type"),
        (message(IMAGE, role="system"), "messages[1].content[0].type"),
        (message(text("one"), system=[text("two"), IMAGE]), "system[1].type"),
        (message(text("one"), system=[{"type": "text"}]), "system[0].text"),
        (
            message(text("one"), mcp_servers=[{"type": "url", "url": "https://sea", "name": "sea"}]),
            "mcp_servers",
        ),
        (message(text("one"), output_format={"type": "json_schema", "schema": {}}), "output_format"),
        (
            response({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}),
            "input[1].encrypted_content",
        ),
        (response(answer({"type": "input_image", "image_url": URL})), "input[1].content[0]"),
        (response(answer(5)), "input[1].content[0]"),
        *(
            (response({"type": kind, "id": "i", "call_id": "c"}), "input[1].type")
            for kind in (
                "item_reference",
                "web_search_call",
                "file_search_call",
                "computer_call",
                "computer_call_output",
                "local_shell_call",
                "local_shell_call_output",
                "shell_call",
                "apply_patch_call",
                "mcp_call",
                "mcp_list_tools",
                "code_interpreter_call",
                "image_generation_call",
                "compaction",
                "tool_search_call",
            )
        ),
        (response({"type": ["message"], "role": "user", "content": "x"}), "input[1].type"),
    ],
)
async def test_what_is_not_in_the_prompt_is_refused_by_its_path(
    engine: Engine, asked: tuple[Operation, dict[str, Any]], path: str
) -> None:
    error = await engine.refusal(*asked)

    assert (error.status, error.param) == (400, path)


USER = {"type": "message", "role": "user", "content": [text("hi", "input_text")]}
HISTORIES: dict[str, list[dict[str, Any]]] = {
    "Codex": [
        {"type": "message", "role": "developer", "content": [text("rules", "input_text")]},
        USER,
        {
            "type": "reasoning",
            "summary": [text("plan", "summary_text")],
            "content": None,
            "encrypted_content": None,
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [text("look", "output_text")],
            "phase": "commentary",
        },
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd": "ls"}', "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
        {
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "c2",
            "name": "apply_patch",
            "input": "+a",
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [text("done", "input_text")]},
    ],
    "OpenAI's Agents SDK": [
        {"role": "user", "content": "hi"},
        {
            "id": "__fake_id__",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "refusal", "refusal": "no"}],
        },
        {"role": "user", "content": "why"},
        {
            "id": "__fake_id__",
            "type": "function_call",
            "call_id": "c1",
            "name": "transfer",
            "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": "c1", "output": "B"},
    ],
    "Vercel's AI SDK": [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": [text("hi", "input_text")]},
        {"role": "assistant", "content": [text("one", "output_text")], "id": None},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": None},
        {"type": "function_call_output", "call_id": "c1", "output": "two"},
    ],
    "another server": [
        USER,
        {
            "type": "reasoning",
            "id": None,
            "summary": None,
            "content": [text("plan", "reasoning_text")],
            "signature": None,
        },
        {
            "type": "message",
            "role": "assistant",
            "id": None,
            "status": None,
            "content": [{"type": "output_text", "text": "one", "annotations": None, "logprobs": None}],
        },
        {
            "type": "function_call",
            "id": None,
            "call_id": "c1",
            "name": "f",
            "arguments": "{}",
            "namespace": None,
        },
        {"type": "function_call_output", "id": None, "call_id": "c1", "output": "two", "status": None},
    ],
}
PROMPTS = {
    "Codex": 'system: rules|user: hi|assistant: (plan) lookexec_command{"cmd": "ls"}|tool: a.txt|'
    'assistant: apply_patch{"input": "+a"}|tool: done|',
    "OpenAI's Agents SDK": "user: hi|assistant: no|user: why|assistant: transfer{}|tool: B|",
    "Vercel's AI SDK": "system: rules|user: hi|assistant: onef{}|tool: two|",
    "another server": "user: hi|assistant: (plan) onef{}|tool: two|",
}


@pytest.mark.parametrize("engine", ["text"], indirect=True)
@pytest.mark.parametrize("origin", HISTORIES)
async def test_histories_of_other_clients_and_servers_are_taken_whole(engine: Engine, origin: str) -> None:
    words, _ = await engine.prompt("responses", {"input": HISTORIES[origin], "max_output_tokens": 3})

    assert words == PROMPTS[origin].replace("user: hi|", "", 1)
