"""The lean encoder against vLLM's own, byte for byte, on the same engine outputs."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.outputs import CompletionOutput, RequestOutput

from serve_app.engine.operations import Serving
from serve_app.engine.plain_stream import PlainChatStream, is_plain

TEXTS = ["The", " tide", "", " naïve — 海 🌊", '\n"quoted" \\ \t\x01', " </script>", " end"]


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


async def outputs(choices: int = 1, finish: str = "stop") -> AsyncIterator[RequestOutput]:
    for step, text in enumerate(TEXTS):
        last = step == len(TEXTS) - 1
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
                    stop_reason="end" if last else None,
                )
                for index in range(choices)
            ],
            finished=last,
        )


async def bytes_of(stream: AsyncIterator[str | bytes]) -> bytes:
    return b"".join([part if isinstance(part, bytes) else part.encode() async for part in stream])


@pytest.fixture(autouse=True)
def one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_both_encoders_write_the_same_bytes(options, choices: int, finish: str) -> None:
    handler = serving()
    asked = request(n=choices, stream_options=options)
    assert is_plain(handler, asked)
    ours = await bytes_of(PlainChatStream(handler, asked, "chatcmpl-1", "m").frames(outputs(choices, finish)))
    theirs = await bytes_of(
        handler.chat_completion_stream_generator(
            asked,
            outputs(choices, finish),
            "chatcmpl-1",
            "m",
            [],
            None,
            SimpleNamespace(),
        )
    )
    assert ours == theirs


async def test_an_error_inside_the_stream_is_vllms_error_frame() -> None:
    async def failing() -> AsyncIterator[RequestOutput]:
        async for output in outputs():
            yield output
            raise ValueError("the engine broke")

    written = await bytes_of(PlainChatStream(serving(), request(), "chatcmpl-1", "m").frames(failing()))
    *_, error, done, rest = written.split(b"\n\n")
    assert error.startswith(b'data: {"error"')
    assert b"the engine broke" in error
    assert (done, rest) == (b"data: [DONE]", b"")


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True},
        {"echo": True},
        {"return_token_ids": True},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    ],
)
def test_what_needs_more_takes_vllms_own_path(fields: dict) -> None:
    assert not is_plain(serving(), request(**fields))


def test_a_reasoning_model_takes_vllms_own_path() -> None:
    assert not is_plain(serving(_include_reasoning_tokens_details=True), request())


@pytest.mark.parametrize("reproduced", [True, False])
async def test_unreproduced_releases_keep_vllms_streams(
    reproduced: bool, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.engine.operations.PLAIN_STREAMS", reproduced)

    mounted = await Serving.mount(serving.engine, serving.state.args)

    assert ("chat_completion_stream_generator" in vars(mounted.state.openai_serving_chat)) is reproduced
