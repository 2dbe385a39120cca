"""A lean SSE encoder for plain-text chat streams.

vLLM builds, validates and serialises a pydantic model for every token. For a stream that carries
nothing but text the frame around the text is constant, so it is built once and each token costs one
JSON string. Whatever needs more (tools, logprobs, echo, reasoning, token ids, usage in every chunk)
takes vLLM's own path; `tests/engine/test_plain_stream.py` holds the two to the same bytes.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.outputs import RequestOutput

from serve_app.api.errors import DONE

_encode = msgspec.json.Encoder().encode


def is_plain(serving: OpenAIServingChat, request: ChatCompletionRequest) -> bool:
    """Whether text, finish reasons and one final usage frame are all this stream will carry."""
    options = request.stream_options
    return not (
        request.tools
        or request.logprobs
        or request.echo
        or request.return_token_ids
        or request.return_prompt_text
        or (options is not None and options.continuous_usage_stats)
        or not request.add_generation_prompt
        or serving.enable_force_include_usage
        or serving.enable_prompt_tokens_details
        or serving.enable_per_request_metrics
        or serving.enable_log_outputs
        or serving._include_reasoning_tokens_details
        or serving.engine_client.vllm_config.speculative_config is not None
    )


def prefer_plain_streams(serving: OpenAIServingChat) -> None:
    """Make `serving` use the lean encoder wherever `is_plain`."""
    stock = serving.chat_completion_stream_generator

    def choose(
        request: ChatCompletionRequest,
        results: AsyncIterator[RequestOutput],
        request_id: str,
        model_name: str,
        *args: Any,
        **kwargs: Any,
    ) -> AsyncGenerator[str | bytes, None]:
        if is_plain(serving, request):
            return plain_chat_stream(serving, request, results, request_id, model_name)
        stream: AsyncGenerator[str | bytes, None] = stock(
            request, results, request_id, model_name, *args, **kwargs
        )
        return stream

    # Set on the instance: the class is shared with whatever else vLLM may build from it.
    serving.chat_completion_stream_generator = choose


async def plain_chat_stream(
    serving: OpenAIServingChat,
    request: ChatCompletionRequest,
    results: AsyncIterator[RequestOutput],
    request_id: str,
    model_name: str,
) -> AsyncGenerator[bytes, None]:
    """SSE frames of a plain chat stream; every chunk holds whole frames, byte for byte vLLM's."""
    choices = request.n or 1
    head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
        _encode(request_id),
        time.time(),
        _encode(model_name),
    )
    before = [head + b'"choices":[{"index":%d,"delta":{"content":' % i for i in range(choices)]
    role = _encode(serving.get_chat_request_role(request))
    include_usage = request.stream_options is not None and bool(request.stream_options.include_usage)
    fingerprint = serving.system_fingerprint
    stamp = b"" if fingerprint is None else b',"system_fingerprint":' + _encode(fingerprint)
    generated = [0] * choices
    finished = [False] * choices
    prompt_tokens = 0
    opened = False
    try:
        async for result in results:
            frames = []
            if result.prompt_token_ids is not None:
                prompt_tokens = len(result.prompt_token_ids)
            if not opened:
                opened = True
                frames += [
                    head + b'"choices":[{"index":%d,"delta":{"role":%b,"content":""},"logprobs":null,'
                    b'"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n' % (i, role)
                    for i in range(choices)
                ]
            for output in result.outputs:
                i = output.index
                if finished[i]:
                    continue
                reason = output.finish_reason
                serving._raise_if_error(reason, request_id)
                if not output.text and not output.token_ids and not generated[i]:
                    continue
                generated[i] += len(output.token_ids)
                text = _encode(output.text)
                if reason is None:
                    frames.append(
                        before[i] + text + b'},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
                    )
                    continue
                finished[i] = True
                frames.append(
                    before[i]
                    + text
                    + b'},"logprobs":null,"finish_reason":%b,"stop_reason":%b,"token_ids":null}]%b}\n\n'
                    % (_encode(reason), _encode(output.stop_reason), b"" if include_usage else stamp)
                )
            if frames:
                yield b"".join(frames)
        if include_usage:
            total = sum(generated)
            usage = b'"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
                prompt_tokens,
                prompt_tokens + total,
                total,
            )
            yield head + usage + stamp + b"}\n\n"
    except Exception as error:
        yield f"data: {serving.create_streaming_error_response(error)}\n\n".encode()
    yield DONE
