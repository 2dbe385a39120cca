"""The HTTP API with a file of keys around a real engine: who finds what in its prefix cache."""

import json
from pathlib import Path
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.endpoints import ApiModel
from serve_app.api.http_api import create_app
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.tree import HttpSettings
from tests.api.server import StubObserver
from tests.engine.calls import InProcess

ONE, OTHER = "sk-one", "sk-other"
BLOCK_TOKENS = 128
"""Of a block of the cache on the CPU, the least that can be found there."""


def api(engine: LocalEngine, tmp_path: Path, **http: Any) -> AsyncClient:
    file = tmp_path / "keys"
    file.write_text(f"{ONE}\n{OTHER}\n")
    app = create_app(
        [ApiModel("tide", 0, InProcess(engine))],
        StubObserver(),
        HttpSettings(**http),
        api_keys=ApiKeyFile(str(file)),
    )
    return AsyncClient(transport=ASGITransport(app), base_url="http://tide")


async def cached(http: AsyncClient, key: str, path: str, prompt: str, **fields: Any) -> int:
    """The tokens of a prompt that a client with `key` is told were in the cache."""
    asked = {"messages": [{"role": "user", "content": prompt}]} if "chat" in path else {"prompt": prompt}
    body = {**asked, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}, **fields}
    reply = await http.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
    assert reply.status_code == 200, reply.text
    *_, last, done, _ = reply.text.split("\n\n")
    assert done == "data: [DONE]"
    tokens: int = json.loads(last.removeprefix("data: "))["latency"]["cached_tokens"]
    return tokens


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_key_finds_its_own_prompts_and_no_others(
    engine: LocalEngine, tmp_path: Path, path: str
) -> None:
    prompt = f"Of {path}: " + "the tide turns. " * 60
    async with api(engine, tmp_path) as http:
        assert await cached(http, ONE, path, prompt) == 0
        assert await cached(http, OTHER, path, prompt) == 0
        assert await cached(http, ONE, path, prompt) >= BLOCK_TOKENS
        assert await cached(http, OTHER, path, prompt) >= BLOCK_TOKENS


async def test_a_prompt_of_generate_is_found_by_its_key_alone(engine: LocalEngine, tmp_path: Path) -> None:
    prompt = "Once upon a time there was a lighthouse. " * 30
    async with api(engine, tmp_path) as http:
        headers = {"Authorization": f"Bearer {ONE}"}
        reply = await http.post("/generate", json={"prompt": prompt, "max_tokens": 2}, headers=headers)
        assert reply.status_code == 200
        assert await cached(http, OTHER, "/v1/completions", prompt) == 0
        assert await cached(http, ONE, "/v1/completions", prompt) >= BLOCK_TOKENS


async def test_the_salt_of_another_client_opens_no_cache(engine: LocalEngine, tmp_path: Path) -> None:
    prompt = "The moon pulls at the sea. " * 40
    async with api(engine, tmp_path) as http:
        assert await cached(http, ONE, "/v1/completions", prompt, cache_salt="ours") == 0
        assert await cached(http, OTHER, "/v1/completions", prompt, cache_salt="ours") == 0
        assert await cached(http, ONE, "/v1/completions", prompt) == 0
        assert await cached(http, ONE, "/v1/completions", prompt, cache_salt="ours") >= BLOCK_TOKENS


async def test_a_trusted_team_shares_what_is_cached(engine: LocalEngine, tmp_path: Path) -> None:
    prompt = "A ship sails at high water. " * 40
    async with api(engine, tmp_path, share_prefix_cache=True) as http:
        assert await cached(http, ONE, "/v1/completions", prompt) == 0
        assert await cached(http, OTHER, "/v1/completions", prompt) >= BLOCK_TOKENS
