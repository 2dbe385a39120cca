import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import ByT5Tokenizer
from vllm.sampling_params import SamplingParams

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.engine import generate_operation, request_record
from serve_app.engine.generate_operation import GenerateOperation, TokenTexts
from serve_app.engine.operations import Serving

LIMIT = 64  # tokens of context


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


class Clock:
    """The timer's clock: it stands still but for what the engine's steps take."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


class StubLlm:
    """As much of vLLM's engine as `/generate` uses: yields the steps it is given."""

    def __init__(self, serving: Serving, *steps: tuple[list[int], str | None]) -> None:
        self.model_config = SimpleNamespace(max_model_len=LIMIT)
        self.renderer = serving.engine.renderer
        self.tasks = ["generate"]
        self.asked: list[tuple[Any, str]] = []
        self.clock = Clock()
        self._steps = steps

    async def get_supported_tasks(self) -> list[str]:
        return self.tasks

    def get_tokenizer(self) -> Any:
        return self.renderer.get_tokenizer()

    async def generate(
        self, prompt: Any, params: Any, request_id: str, trace_headers: Any
    ) -> AsyncIterator[Any]:
        self.asked.append((params, request_id))
        for ids, reason in self._steps:
            self.clock.now += 2.0
            delta = SimpleNamespace(token_ids=ids, text="", finish_reason=reason)
            yield SimpleNamespace(outputs=[delta], prompt_token_ids=[1, 2, 3])


def request(**fields: Any) -> EngineRequest:
    body = json.dumps({"prompt": "sea", **fields}).encode()
    return EngineRequest("generate", body, "r-1", time.perf_counter() - 0.5)


def steps(tokenizer: Any, *texts: str) -> list[tuple[list[int], str | None]]:
    """A step for each text; the last one finishes."""
    return [
        (tokenizer.encode(text), "length" if number == len(texts) else None)
        for number, text in enumerate(texts, 1)
    ]


async def test_the_whole_text_comes_with_its_tokens(serving: Serving, tokenizer: Any) -> None:
    llm = StubLlm(serving, *steps(tokenizer, "The", " tide turns"))

    reply = await GenerateOperation(llm, "tide").run(request(max_tokens=9, temperature=0))

    assert isinstance(reply, EngineReply)
    document = json.loads(reply.body)
    del document["timings"]
    ids = tokenizer.encode("The") + tokenizer.encode(" tide turns")
    assert document == {
        "model": "tide",
        "text": "The tide turns",
        "token_ids": ids,
        "finish_reason": "length",
        "prompt_tokens": 3,
    }
    ((params, request_id),) = llm.asked
    assert (params.max_tokens, params.temperature) == (9, 0)
    assert "r-1" in request_id


async def test_the_timings_are_those_of_the_users_wait(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a second before the engine had it, 2 s to the first step's token and 2 s to the second's."""
    llm = StubLlm(serving, ([7], None), ([8], "stop"))
    for module in (generate_operation, request_record):
        monkeypatch.setattr(module, "time", llm.clock)
    asked = replace(request(max_tokens=9), arrived=llm.clock.now - 0.5)

    reply = await GenerateOperation(llm, "tide").run(asked)

    assert isinstance(reply, EngineReply)
    assert json.loads(reply.body)["timings"] == {
        "cold_wait_ms": 0.0,
        "ttft_ms": 2500.0,
        "inter_token_ms": 2000.0,
        "total_time_ms": 4500.0,
        "tokens_generated": 2,
        "tokens_per_second": 0.444,
    }


async def streamed(llm: StubLlm) -> tuple[list[bytes], list[dict[str, Any]]]:
    """The chunks of a stream, and its events without `[DONE]`."""
    frames = await GenerateOperation(llm, "tide").run(request(stream=True, max_tokens=9))
    assert not isinstance(frames, EngineReply)
    chunks = [chunk async for chunk in frames]
    *events, done, rest = b"".join(chunks).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return chunks, [json.loads(event.removeprefix(b"data: ")) for event in events]


async def test_every_token_is_an_event_even_where_steps_were_merged(serving: Serving, tokenizer: Any) -> None:
    texts = ["The", " tide turns 🌊", " now"]

    chunks, events = await streamed(StubLlm(serving, ([], None), *steps(tokenizer, *texts)))

    assert len(chunks) == len(texts) + 1  # a chunk a step with tokens, and the end
    assert "".join(event["token"] for event in events) == "".join(texts)
    assert [event["token_id"] for event in events] == [
        token for text in texts for token in tokenizer.encode(text)
    ]
    assert set(events[0]) == {"token", "token_id", "prefill_time_ms"}
    assert all(set(event) == {"token", "token_id", "step_ms"} for event in events[1:])


async def refusal(serving: Serving, tasks: tuple[str, ...] = ("generate",), **fields: Any) -> ApiError:
    llm = StubLlm(serving)
    llm.tasks = list(tasks)
    with pytest.raises(ApiError) as caught:
        await GenerateOperation(llm, "tide").run(request(**fields))
    assert llm.asked == []
    assert caught.value.status == 400
    return caught.value


async def test_a_model_that_only_embeds_does_not_generate(serving: Serving) -> None:
    error = await refusal(serving, tasks=("embed",))

    assert (error.param, error.code) == ("model", "unsupported_feature")


async def test_prompt_that_fills_the_context_is_refused(serving: Serving, tokenizer: Any) -> None:
    prompt = " sea" * LIMIT
    tokens = len(tokenizer.encode(prompt))
    assert tokens >= LIMIT

    error = await refusal(serving, prompt=prompt)

    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert str(tokens) in error.message
    assert str(LIMIT) in error.message


async def test_max_tokens_beyond_the_context_is_refused(serving: Serving, tokenizer: Any) -> None:
    room = LIMIT - len(tokenizer.encode("sea"))

    error = await refusal(serving, max_tokens=room + 1)

    assert (error.param, error.code) == ("max_tokens", "invalid_value")
    assert error.message == f"max_tokens = {room + 1}: the prompt leaves room for {room} of {LIMIT} tokens"
    llm = StubLlm(serving, *steps(tokenizer, "a"))
    await GenerateOperation(llm, "tide").run(request(max_tokens=room))
    assert len(llm.asked) == 1
