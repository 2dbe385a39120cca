"""The lean encoder against vLLM's own, byte for byte, on the same engine outputs."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.outputs import CompletionOutput, RequestOutput

from serve_app.engine.chat_operations import Serving
from serve_app.engine.plain_stream import PlainChatStream, is_plain

TEXTS = ["The", " tide", "", " naïve — 海 🌊", '\n"quoted" \\ \t\x01', " </script>", " end"]
MOMENT = 1_700_000_000.0


def serving(**changes) -> OpenAIServingChat:
    """vLLM's handler with the attributes its stream generator reads, and no engine behind it."""
    made = object.__new__(OpenAIServingChat)
    defaults = {
        "parser_cls": None,
        "response_role": "assistant",
        "request_logger": None,
        "enable_log_outputs": False,
        "enable_log_deltas": False,
        "enable_force_include_usage": False,
        "enable_prompt_tokens_details": False,
        "enable_per_request_metrics": False,
        "system_fingerprint": "vllm-test",
        "engine_client": SimpleNamespace(vllm_config=SimpleNamespace(speculative_config=None)),
        "_include_reasoning_tokens_details": False,
    }
    for name, value in {**defaults, **changes}.items():
        setattr(made, name, value)
    return made


def request(**fields) -> ChatCompletionRequest:
    return ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True, **fields
    )


async def outputs(
    texts: list[str], choices: int = 1, finish: str = "stop", stop: str | int | None = None
) -> AsyncIterator[RequestOutput]:
    for step, text in enumerate(texts):
        last = step == len(texts) - 1
        yield RequestOutput(
            request_id="r",
            prompt="hi",
            prompt_token_ids=[1, 2, 3],
            prompt_logprobs=None,
            outputs=[
                CompletionOutput(
                    index=index,
                    text=text,
                    token_ids=[step, index],
                    cumulative_logprob=None,
                    logprobs=None,
                    finish_reason=finish if last else None,
                    stop_reason=stop if last else None,
                )
                for index in range(choices)
            ],
            finished=last,
        )


async def bytes_of(stream: AsyncIterator[str | bytes]) -> bytes:
    return b"".join([part if isinstance(part, bytes) else part.encode() async for part in stream])


texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=6)


@given(
    texts=texts,
    choices=st.integers(1, 3),
    finish=st.sampled_from(["stop", "length", "tool_calls"]),
    stop=st.none() | st.text(max_size=3) | st.integers(0, 9),
    options=st.sampled_from([None, {"include_usage": True}, {"include_usage": False}]),
    fingerprint=st.sampled_from([None, "vllm-test"]),
)
@example(TEXTS, 2, "stop", "end", {"include_usage": True}, "vllm-test")
def test_both_encoders_write_the_same_bytes(
    texts: list[str],
    choices: int,
    finish: str,
    stop: str | int | None,
    options: dict[str, bool] | None,
    fingerprint: str | None,
) -> None:
    handler = serving(system_fingerprint=fingerprint)
    asked = request(n=choices, stream_options=options)
    assert is_plain(handler, asked)

    async def both() -> tuple[bytes, bytes]:
        plain = PlainChatStream(handler, asked, "chatcmpl-1", "m")
        stock = handler.chat_completion_stream_generator(
            asked, outputs(texts, choices, finish, stop), "chatcmpl-1", "m", [], None, SimpleNamespace()
        )
        return await bytes_of(plain.frames(outputs(texts, choices, finish, stop))), await bytes_of(stock)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("time.time", lambda: MOMENT)
        ours, theirs = asyncio.run(both())
    assert ours == theirs


async def test_an_error_inside_the_stream_is_vllms_error_frame() -> None:
    async def failing() -> AsyncIterator[RequestOutput]:
        async for output in outputs(TEXTS):
            yield output
            raise ValueError("the engine broke")

    written = await bytes_of(PlainChatStream(serving(), request(), "chatcmpl-1", "m").frames(failing()))
    *_, error, done, rest = written.split(b"\n\n")
    assert error.startswith(b'data: {"error"')
    assert b"the engine broke" in error
    assert (done, rest) == (b"data: [DONE]", b"")


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({"logprobs": True}, {}),
        ({"echo": True}, {}),
        ({"return_token_ids": True}, {}),
        ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, {}),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "object"}}}]}, {}),
        ({}, {"_include_reasoning_tokens_details": True}),
    ],
)
def test_what_needs_more_takes_vllms_own_path(fields: dict, changes: dict) -> None:
    assert not is_plain(serving(**changes), request(**fields))


@pytest.mark.parametrize("reproduced", [True, False])
async def test_unreproduced_releases_keep_vllms_streams(
    reproduced: bool, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.engine.chat_operations.OWN_STREAMS", reproduced)

    mounted = await Serving.mount(serving.engine, serving.state.args)

    assert ("chat_completion_stream_generator" in vars(mounted.state.openai_serving_chat)) is reproduced
