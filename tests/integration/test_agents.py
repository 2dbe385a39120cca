"""Second turns of coding agents: the fields that Codex 0.169 and Claude Code 2.1 send, and short texts."""

import json
from typing import Any

import httpx
import pytest

from tests.integration.conftest import CHAT

SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
EXEC = {
    "type": "function",
    "name": "exec_command",
    "description": "Run a command.",
    "strict": False,
    "parameters": {**SCHEMA, "additionalProperties": False},
}
CODEX_HEADERS = {
    "Accept": "text/event-stream",
    "originator": "codex_exec",
    "session-id": "01a2",
    "x-codex-turn-metadata": '{"session_id":"01a2","sandbox":"seccomp"}',
}
CODEX: dict[str, Any] = {
    "model": CHAT,
    "stream": True,
    "input": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "developer",
            "content": [
                {"type": "input_text", "text": "Be brief."},
                {"type": "input_text", "text": "Stay here."},
            ],
        },
        {
            "type": "message",
            "id": "msg_2",
            "role": "user",
            "content": [{"type": "input_text", "text": "Tell me about the sea."}],
        },
        {
            "type": "function_call",
            "status": "completed",
            "id": "fc_1",
            "name": "exec_command",
            "arguments": '{"cmd": "ls"}',
            "call_id": "call_1",
        },
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "Output:\nsea.txt\n"},
    ],
    "tools": [
        EXEC,
        {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [EXEC]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2",
    "client_metadata": {"session_id": "01a2"},
}

CLAUDE_HEADERS = {
    "Authorization": "Bearer none",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
CLAUDE: dict[str, Any] = {
    "model": "claude-opus-4-8",
    "max_tokens": 1000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"},
        {"type": "text", "text": "You are an agent.", **EPHEMERAL},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Tell me about the sea."}]},
        {"role": "system", "content": "Kinds of agents: none."},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"cmd": "ls"}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": "sea.txt",
                    "is_error": False,
                    **EPHEMERAL,
                }
            ],
        },
    ],
    "tools": [{"name": "Bash", "description": "Run a command.", "input_schema": SCHEMA}],
    "metadata": {"user_id": '{"device_id":"5ac9"}'},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]


def test_codex_gets_its_items_and_the_end_of_its_turn(http: httpx.Client) -> None:
    *_, done, end = events_of(http.post("/v1/responses", json=CODEX, headers=CODEX_HEADERS))

    # Codex reads whole items, and takes a turn for ended with this event, which must have an id and a usage.
    assert done["type"] == "response.output_item.done"
    assert done["item"]["type"] in ("message", "function_call")
    assert end["type"] == "response.completed"
    assert end["response"]["id"]
    usage = end["response"]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_claude_code_gets_a_message_under_the_name_it_asked_for(http: httpx.Client) -> None:
    first, *events = events_of(http.post("/v1/messages?beta=true", json=CLAUDE, headers=CLAUDE_HEADERS))

    assert first["type"] == "message_start"
    assert first["message"]["model"] == "claude-opus-4-8"
    assert "content_block_delta" in [each["type"] for each in events]
    assert events[-1]["type"] == "message_stop"


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/v1", 404)])
def test_claude_codes_first_look_at_a_server_is_answered(http: httpx.Client, path: str, status: int) -> None:
    assert http.head(path).status_code == status
