import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from transformers import ByT5Tokenizer
from vllm.sampling_params import SamplingParams

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from serve_app.engine.chat_operations import Serving
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.generate_operation import TokenTexts, generate
from tests.engine.calls import engine_call
from tests.engine.stub_engine_core import TOKEN, StubEngineCore


@pytest.fixture(scope="module")
def tokenizer(serving: Serving) -> Any:
    """The embedded model's, as its engine has it."""
    return serving.engine.get_tokenizer()


def texts_of(tokenizer: Any, prompt: list[int] | None = None) -> TokenTexts:
    return TokenTexts(tokenizer, SamplingParams(), prompt or [1], "r-1")


@pytest.mark.parametrize("text", ["The tide turns.", "naïve — “größer” 海 🌊", "  spaces\n\nand lines\t"])
def test_parts_join_to_text_without_half_characters(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text)

    parts = texts_of(tokenizer).split(ids)

    assert len(parts) == len(ids)
    assert "".join(parts) == text
    assert "\ufffd" not in "".join(parts)
    step_by_step = texts_of(tokenizer)
    assert [step_by_step.split([token])[0] for token in ids] == parts
    assert texts_of(tokenizer).split(ids, stopped=True) == [*parts[:-1], ""]  # its last token is no text


def test_a_tokenizer_in_python_splits_the_text_too() -> None:
    slow = ByT5Tokenizer()
    ids = slow.encode("sea 海", add_special_tokens=False)

    assert texts_of(slow).split(ids) == ["s", "e", "a", " ", "", "", "海"]


class Generating:
    """The operation on a front end of vLLM, and the fake core that answers with these texts' tokens."""

    def __init__(self, serving: Serving, core: Any) -> None:
        self.core: StubEngineCore = core
        self.limit: int = serving.engine.model_config.max_model_len
        self._run = partial(generate, serving)

    async def whole(self, **fields: Any) -> dict[str, Any]:
        reply = await self._run(request(**fields))
        assert isinstance(reply, EngineReply)
        document: dict[str, Any] = json.loads(reply.body)
        return document

    async def streamed(self, **fields: Any) -> list[dict[str, Any]]:
        """The events without `[DONE]`."""
        frames = await self._run(request(stream=True, **fields))
        assert not isinstance(frames, EngineReply)
        *events, done, rest = b"".join([chunk async for chunk in frames]).split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        return [json.loads(event.removeprefix(b"data: ")) for event in events]

    async def refusal(self, **fields: Any) -> ApiError:
        before = len(self.core.requests)
        with pytest.raises(ApiError) as caught:
            await self.whole(**fields)
        assert len(self.core.requests) == before
        assert caught.value.status == 400
        return caught.value


@pytest.fixture
def generating(serving: Serving) -> Iterator[Generating]:
    made = Generating(serving, serving.engine.engine_core)
    yield made
    made.core.answer, made.core.tokens_a_step = [TOKEN], 1


def request(**fields: Any) -> EngineCall:
    body = json.dumps({"prompt": "sea", **fields}).encode()
    return engine_call("generate", body, "r-1", time.perf_counter() - 0.5)


async def test_whole_text_comes_with_its_tokens_and_timings(generating: Generating, tokenizer: Any) -> None:
    ids = generating.core.answer = tokenizer.encode("The tide turns")

    document = await generating.whole(max_tokens=len(ids), temperature=0)

    timings = document.pop("timings")
    assert document == {
        "model": "tide",
        "text": "The tide turns",
        "token_ids": ids,
        "finish_reason": "length",
        "prompt_tokens": len(tokenizer.encode("sea")),
    }
    # Half a second passed before the engine had the request.
    assert 500 <= timings["ttft_ms"] <= timings["total_time_ms"]
    assert timings["tokens_generated"] == len(ids)
    params = generating.core.requests[-1].sampling_params
    assert (params.max_tokens, params.temperature) == (len(ids), 0)
    assert "r-1" in generating.core.requests[-1].request_id


@pytest.mark.parametrize("tokens_a_step", [1, 3], ids=["a token a step", "merged steps"])
async def test_every_token_is_an_event(generating: Generating, tokenizer: Any, tokens_a_step: int) -> None:
    text = "The tide turns 🌊 now"
    ids = generating.core.answer = tokenizer.encode(text)
    generating.core.tokens_a_step = tokens_a_step

    events = await generating.streamed(max_tokens=len(ids))

    assert "".join(event["token"] for event in events) == text
    assert [event["token_id"] for event in events] == ids
    assert set(events[0]) == {"token", "token_id", "prefill_time_ms"}
    assert all(set(event) == {"token", "token_id", "step_ms"} for event in events[1:])


async def test_prompt_that_fills_the_context_is_refused(generating: Generating, tokenizer: Any) -> None:
    prompt = " sea" * generating.limit
    tokens = len(tokenizer.encode(prompt))
    assert tokens >= generating.limit

    error = await generating.refusal(prompt=prompt)

    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert str(tokens) in error.message
    assert str(generating.limit) in error.message


async def test_max_tokens_beyond_the_context_is_refused(generating: Generating, tokenizer: Any) -> None:
    room = generating.limit - len(tokenizer.encode("sea"))

    error = await generating.refusal(max_tokens=room + 1)

    assert (error.param, error.code) == ("max_tokens", "invalid_value")
    bound = f"the prompt leaves room for {room} of {generating.limit} tokens"
    assert error.message == f"max_tokens = {room + 1}: {bound}"
    assert len((await generating.whole(max_tokens=room))["token_ids"]) == room
