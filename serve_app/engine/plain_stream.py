"""A lean SSE encoder for plain-text chat streams.

vLLM builds, validates and serialises a pydantic model for every token. In a stream of plain text the frame
around the text is constant. So the frame is built once, and each token costs one JSON string. Other streams
(tools, logprobs, echo, reasoning, token ids, usage in every chunk) use vLLM's encoder.
`tests/engine/test_plain_stream.py` checks that both make the same bytes.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.outputs import RequestOutput

from serve_app.api.errors import DONE
from serve_app.engine.engine_call import EngineCall
from serve_app.patches.vllm import Method, wrap_method

_encode = msgspec.json.Encoder().encode


def is_plain(serving: OpenAIServingChat, request: ChatCompletionRequest) -> bool:
    """Return whether the stream will have only text, finish reasons and a final usage frame."""
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
    """Have `serving` use the lean encoder for plain streams."""
    wrap_method(serving, "chat_completion_stream_generator", lambda stock: _choose(serving, stock))


def _choose(serving: OpenAIServingChat, stock: Method) -> Method:
    def choose(
        request: ChatCompletionRequest,
        results: AsyncIterator[RequestOutput],
        request_id: str,
        model_name: str,
        *args: Any,
        **kwargs: Any,
    ) -> AsyncGenerator[str | bytes, None]:
        if is_plain(serving, request):
            plain = PlainChatStream(serving, request, request_id, model_name)
            if (current := EngineCall.current()) is not None:
                current.encode = plain.encode
            return plain.frames(results)
        stream: AsyncGenerator[str | bytes, None] = stock(
            request, results, request_id, model_name, *args, **kwargs
        )
        return stream

    return choose


class PlainChatStream:
    """Encodes the SSE frames of one plain chat stream, with exactly vLLM's bytes."""

    def __init__(
        self, serving: OpenAIServingChat, request: ChatCompletionRequest, request_id: str, model_name: str
    ) -> None:
        choices = request.n or 1
        self._serving = serving
        self._request_id = request_id
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
            _encode(request_id),
            time.time(),
            _encode(model_name),
        )
        self._before = [
            self._head + b'"choices":[{"index":%d,"delta":{"content":' % i for i in range(choices)
        ]
        self._role = _encode(serving.get_chat_request_role(request))
        self._include_usage = request.stream_options is not None and bool(
            request.stream_options.include_usage
        )
        fingerprint = serving.system_fingerprint
        self._fingerprint = b"" if fingerprint is None else b',"system_fingerprint":' + _encode(fingerprint)
        self._generated = [0] * choices
        self._finished = [False] * choices
        self._prompt_tokens = 0
        self._opened = False

    async def frames(self, results: AsyncIterator[RequestOutput]) -> AsyncGenerator[bytes, None]:
        """Yield the frames of `results` and of the stream's end. Every chunk has whole frames."""
        try:
            async for result in results:
                if frames := self.encode(result):
                    yield frames
            if self._include_usage:
                total = sum(self._generated)
                usage = (
                    b'"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}'
                    % (self._prompt_tokens, self._prompt_tokens + total, total)
                )
                yield self._head + usage + self._fingerprint + b"}\n\n"
        except Exception as error:
            yield f"data: {self._serving.create_streaming_error_response(error)}\n\n".encode()
        yield DONE

    def encode(self, result: RequestOutput) -> bytes:
        """Return the frames of the next output. Raises vLLM's error if the generation has failed."""
        frames = []
        if result.prompt_token_ids is not None:
            self._prompt_tokens = len(result.prompt_token_ids)
        if not self._opened:
            self._opened = True
            frames += [
                self._head + b'"choices":[{"index":%d,"delta":{"role":%b,"content":""},"logprobs":null,'
                b'"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n' % (i, self._role)
                for i in range(len(self._before))
            ]
        for output in result.outputs:
            i = output.index
            if self._finished[i]:
                continue
            reason = output.finish_reason
            self._serving._raise_if_error(reason, self._request_id)
            if not output.text and not output.token_ids and not self._generated[i]:
                continue
            self._generated[i] += len(output.token_ids)
            text = _encode(output.text)
            if reason is None:
                frames.append(
                    self._before[i] + text + b'},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
                )
                continue
            self._finished[i] = True
            frames.append(
                self._before[i]
                + text
                + b'},"logprobs":null,"finish_reason":%b,"stop_reason":%b,"token_ids":null}]%b}\n\n'
                % (
                    _encode(reason),
                    _encode(output.stop_reason),
                    b"" if self._include_usage else self._fingerprint,
                )
            )
        return b"".join(frames)
