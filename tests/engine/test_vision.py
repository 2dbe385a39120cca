"""Images in chats, on a real engine with a tiny model that sees."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.engine.local_client import LocalEngine
from tests.engine.stub_engine_core import real_engine
from tests.engine.test_media import DATA
from tests.engine.tiny_models import vision_model


@pytest.fixture(scope="module")
async def seeing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalEngine]:
    folder = vision_model(tmp_path_factory.mktemp("vision"))
    async with real_engine(model=folder, dtype="float32", allowed_media_domains=["example.com"]) as engine:
        yield engine


async def chat(engine: LocalEngine, *parts: dict[str, Any], **body: Any) -> Any:
    content = [{"type": "text", "text": "What is it?"}, *parts]
    document = {"messages": [{"role": "user", "content": content}], "max_tokens": 2, **body}
    async with engine.call(EngineRequest("chat_completions", json.dumps(document).encode(), "r-1")) as reply:
        if reply.stream is None:
            return json.loads(reply.body)
        return b"".join([frame async for frame in reply.stream])


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def test_an_image_is_four_tokens_of_the_prompt(seeing: LocalEngine) -> None:
    without, seen = await chat(seeing), await chat(seeing, image(DATA))

    assert seen["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"] + 4
    assert seen["usage"]["completion_tokens"] == 2
    assert b"data: [DONE]" in await chat(seeing, image(DATA), stream=True)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://169.254.169.254/latest/meta-data", "allowed_media_domains"),
        ("file:///etc/passwd", "must be a data: URL"),
        ("data:image/png;base64,AAAA", "image"),
    ],
)
async def test_another_image_is_the_clients_error(seeing: LocalEngine, url: str, says: str) -> None:
    with pytest.raises(ApiError, match=says) as caught:
        await chat(seeing, image(url))

    assert caught.value.status == 400
    assert (await chat(seeing))["usage"]["completion_tokens"] == 2
