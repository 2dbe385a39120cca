"""The OpenAI operations of one engine: parse the body, bound it, hand it to vLLM's handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from pydantic import BaseModel, TypeAdapter
from starlette.responses import Response
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.engine.api_errors import from_response
from serve_app.engine.bounds import check_characters, check_inputs, check_sampling, check_token_ids
from serve_app.engine.serving import Serving, raw_request

_chat: TypeAdapter[ChatCompletionRequest] = TypeAdapter(ChatCompletionRequest)
_completion: TypeAdapter[CompletionRequest] = TypeAdapter(CompletionRequest)
_embedding: TypeAdapter[Any] = TypeAdapter(EmbeddingRequest)
_tokenize: TypeAdapter[Any] = TypeAdapter(TokenizeRequest)
_detokenize: TypeAdapter[DetokenizeRequest] = TypeAdapter(DetokenizeRequest)

_MAX_INPUTS = 2048
"""OpenAI's own bound on the texts of one request for embeddings."""


class _Input(msgspec.Struct):
    input: Any = None


_input = msgspec.json.Decoder(_Input)

Answer = EngineReply | AsyncIterator[str | bytes]
"""A finished reply, or the frames of a stream as vLLM yields them."""


class OpenAIOperations:
    """vLLM's handlers behind this API's bounds.

    Args:
        serving: The mounted handlers.
        max_sequences: Bound on `n` times the number of prompts of one request.
    """

    def __init__(self, serving: Serving, max_sequences: int) -> None:
        self._serving = serving
        self._max_sequences = max_sequences
        self._vocabulary = serving.engine.model_config.get_vocab_size()

    async def chat_completions(self, call: EngineRequest) -> Answer:
        """Chat completion: a reply, or the frames of a stream."""
        handler = self._serving.handler("openai_serving_chat", "chat completions")
        request = _chat.validate_json(call.body)
        check_sampling(request, prompts=1, max_sequences=self._max_sequences, vocabulary=self._vocabulary)
        return _answer(await handler.create_chat_completion(request, raw_request(call.request_id)))

    async def completions(self, call: EngineRequest) -> Answer:
        """Text completion of one or more prompts: a reply, or the frames of a stream."""
        handler = self._serving.handler("openai_serving_completion", "completions")
        request = _completion.validate_json(call.body)
        prompts = check_token_ids("prompt", request.prompt, self._vocabulary)
        check_sampling(
            request, prompts=prompts, max_sequences=self._max_sequences, vocabulary=self._vocabulary
        )
        return _answer(await handler.create_completion(request, raw_request(call.request_id)))

    async def embeddings(self, call: EngineRequest) -> Answer:
        """Embeddings of the input."""
        handler = self._serving.handler("serving_embedding", "embeddings")
        # First, for pydantic tries each of them as everything that an input may be: 18 µs a text.
        check_inputs("input", _input.decode(call.body).input, _MAX_INPUTS)
        request = _embedding.validate_json(call.body)
        check_token_ids("input", getattr(request, "input", None), self._vocabulary)
        return _answer(await handler(request, raw_request(call.request_id)))

    async def tokenize(self, call: EngineRequest) -> Answer:
        """Text or messages to token ids."""
        handler = self._serving.handler("serving_tokenization", "tokenization")
        request = _tokenize.validate_json(call.body)
        # vLLM's own bound is for prompts that are to be generated from.
        messages = getattr(request, "messages", None)
        check_characters(
            "prompt" if messages is None else "messages",
            getattr(request, "prompt", None) if messages is None else _texts(messages),
            self._serving.engine.model_config.max_model_len,
            self._serving.engine.get_tokenizer(),
        )
        return _answer(await handler.create_tokenize(request, raw_request(call.request_id)))

    async def detokenize(self, call: EngineRequest) -> Answer:
        """Token ids to text."""
        handler = self._serving.handler("serving_tokenization", "tokenization")
        request = _detokenize.validate_json(call.body)
        check_token_ids("tokens", request.tokens, self._vocabulary)
        limit = self._serving.engine.model_config.max_model_len
        if len(request.tokens) > limit:
            raise ApiError(
                400,
                f"tokens: {len(request.tokens)} tokens, and the model's context length is {limit}",
                param="tokens",
                code="context_length_exceeded",
            )
        return _answer(await handler.create_detokenize(request, raw_request(call.request_id)))


def _texts(messages: list[Any]) -> str:
    """All the text of chat messages, in one."""
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in (*contents, *parts)]
    return "".join(text for text in texts if isinstance(text, str))


def _answer(result: Any) -> Answer:
    if isinstance(result, ErrorResponse):
        raise from_response(result)
    if isinstance(result, BaseModel):
        return EngineReply(200, result.model_dump_json().encode())
    if isinstance(result, Response):  # the embedding handler answers with a finished response
        if result.status_code >= 400:
            error = msgspec.json.decode(bytes(result.body)).get("error", {})
            raise ApiError(result.status_code, error.get("message", ""), param=error.get("param"))
        return EngineReply(200, bytes(result.body))
    stream: AsyncIterator[str | bytes] = result
    return stream
