"""Images in each API, on a real engine with a tiny model that sees."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from PIL import Image

from serve_app.api.engine_client import Operation
from serve_app.api.errors import ApiError
from serve_app.engine.local_client import LocalEngine
from tests.engine.calls import engine_call
from tests.engine.stub_engine_core import configured, real_serving

GREEDY = {"model": "tide", "temperature": 0}
TEXT = "What is this?"
METADATA = "http://169.254.169.254/latest/image.png"
"""The address of a cloud's metadata service."""


def png(colour: str) -> str:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def chat(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": TEXT}, {"type": "image_url", "image_url": {"url": url}}]
    return {**GREEDY, "max_tokens": 6, "messages": [{"role": "user", "content": parts}]}


def response(url: str) -> dict[str, Any]:
    parts = [
        {"type": "input_text", "text": TEXT},
        {"type": "input_image", "image_url": url, "detail": "auto"},
    ]
    return {**GREEDY, "max_output_tokens": 6, "input": [{"role": "user", "content": parts}]}


def message(url: str) -> dict[str, Any]:
    source = {"type": "url", "url": url}
    if url.startswith("data:"):
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    parts = [{"type": "text", "text": TEXT}, {"type": "image", "source": source}]
    return {**GREEDY, "max_tokens": 6, "messages": [{"role": "user", "content": parts}]}


@pytest.fixture(scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalEngine]:
    from tests.engine.tiny_models import vision_language_model

    model = vision_language_model(tmp_path_factory.mktemp("vision"))
    settings, namespace, config = configured(model=model, dtype="float32", kv_cache_memory_bytes=32 << 20)
    async with real_serving(namespace, config) as serving:
        yield LocalEngine(serving, settings, lambda _: None)


async def ask(
    engine: LocalEngine, operation: Operation, body: dict[str, Any], salt: str = ""
) -> dict[str, Any]:
    request = engine_call(operation, json.dumps(body).encode(), "r-1", cache_salt=salt)
    async with engine.call(request) as reply:
        found: dict[str, Any] = json.loads(reply.body)
        return found


async def test_the_answer_depends_on_the_image(engine: LocalEngine) -> None:
    red, blue, again = [
        await ask(engine, "chat_completions", chat(f"data:image/png;base64,{png(colour)}"))
        for colour in ("red", "blue", "red")
    ]

    assert red["choices"] == again["choices"] != blue["choices"]
    assert red["usage"]["prompt_tokens"] == blue["usage"]["prompt_tokens"]


async def test_each_api_shows_the_model_the_same_image(engine: LocalEngine) -> None:
    url = f"data:image/png;base64,{png('red')}"

    chatted = await ask(engine, "chat_completions", chat(url))
    responded = await ask(engine, "responses", response(url))
    messaged = await ask(engine, "messages", message(url))

    text = chatted["choices"][0]["message"]["content"]
    assert responded["output"][0]["content"][0]["text"] == messaged["content"][0]["text"] == text


async def test_a_uuid_means_the_media_of_its_own_key(engine: LocalEngine) -> None:
    async def text(salt: str, colour: str | None, uuid: str | None) -> str:
        body = chat("data:image/png;base64," + png(colour or "red"))
        image = body["messages"][0]["content"][1]
        if uuid is not None:
            image["uuid"] = uuid
        if colour is None:
            image["image_url"] = None
        answer = await ask(engine, "chat_completions", body, salt)
        return str(answer["choices"][0]["message"]["content"])

    red, blue = await text("", "red", None), await text("", "blue", None)
    assert await text("of one key", "red", "logo") == red
    assert await text("of another", "blue", "logo") == blue
    assert await text("of one key", None, "logo") == red
    with pytest.raises(ApiError) as caught:
        await text("of a third", None, "logo")
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("operation", "body", "param"),
    [
        ("chat_completions", chat(METADATA), "messages[0].content[1].image_url.url"),
        ("responses", response(METADATA), "input[0].content[1].image_url"),
        ("messages", message(METADATA), "messages[0].content[1].source.url"),
    ],
)
async def test_an_image_of_a_host_that_is_not_allowed_is_refused(
    engine: LocalEngine, operation: Operation, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError, match="allowed_media_domains") as caught:
        await ask(engine, operation, body)

    assert (caught.value.status, caught.value.param) == (400, param)
