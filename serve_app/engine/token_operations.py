"""Embeddings, tokenization and detokenization of one engine, by vLLM's handlers."""

from typing import Any

import msgspec
from starlette.responses import Response
from vllm.entrypoints.pooling.embed.protocol import (
    EmbeddingChatRequest,
    EmbeddingCompletionRequest,
    EmbeddingRequest,
)
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    TokenizeRequest,
)

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError, not_an_object
from serve_app.engine.bounds import check_characters, check_inputs, check_token_ids
from serve_app.engine.completions import ReplyOrFrames, answer_of, cache_salt, find_handler, raw_request
from serve_app.engine.media import check_media
from serve_app.engine.request_body import RequestModel, errors_named_in
from serve_app.engine.serving import Serving

EMBEDDING = RequestModel(
    EmbeddingRequest, {"messages": EmbeddingChatRequest, "input": EmbeddingCompletionRequest}
)
TOKENIZE = RequestModel(
    TokenizeRequest, {"messages": TokenizeChatRequest, "prompt": TokenizeCompletionRequest}
)
_detokenize = RequestModel(DetokenizeRequest)

_MAX_INPUTS = 2048
"""OpenAI's own bound on the texts of one request for embeddings."""


class _Input(msgspec.Struct):
    input: Any = None


_input = msgspec.json.Decoder(_Input)


class TokenOperations:
    """vLLM's handlers of what generates nothing, behind this API's bounds."""

    def __init__(self, serving: Serving) -> None:
        self._handlers = serving.state
        self._engine = serving.engine
        self._config = serving.engine.model_config
        self._vocabulary = self._config.get_vocab_size()

    async def embeddings(self, call: EngineRequest) -> ReplyOrFrames:
        """Embeddings of the input."""
        handler = find_handler(self._handlers, "serving_embedding", "embeddings")
        # First, for pydantic tries each of them as everything that an input may be: 18 µs a text.
        try:
            inputs = _input.decode(call.body).input
        except (msgspec.DecodeError, RecursionError) as error:
            raise not_an_object(error) from None
        check_inputs("input", inputs, _MAX_INPUTS)
        request = EMBEDDING.parse(call.body, self._config)
        check_media(call.body, self._config)
        check_token_ids("input", getattr(request, "input", None), self._vocabulary)
        request.cache_salt = cache_salt(call, request.cache_salt)
        with errors_named_in(request):
            response: Response = await handler(request, raw_request(call))
            if response.status_code >= 400:
                refusal = msgspec.json.decode(bytes(response.body)).get("error", {})
                raise ApiError(response.status_code, refusal.get("message", ""), param=refusal.get("param"))
            return EngineReply(200, bytes(response.body))

    async def tokenize(self, call: EngineRequest) -> ReplyOrFrames:
        """Text or messages to token ids."""
        handler = find_handler(self._handlers, "serving_tokenization", "tokenization")
        request = TOKENIZE.parse(call.body, self._config)
        check_media(call.body, self._config)
        # vLLM's own bound is for prompts that are to be generated from.
        messages = getattr(request, "messages", None)
        check_characters(
            "prompt" if messages is None else "messages",
            getattr(request, "prompt", None) if messages is None else _texts(messages),
            self._config.max_model_len,
            self._engine.get_tokenizer(),
        )
        with errors_named_in(request):
            return answer_of(await handler.create_tokenize(request, raw_request(call)))

    async def detokenize(self, call: EngineRequest) -> ReplyOrFrames:
        """Token ids to text."""
        handler = find_handler(self._handlers, "serving_tokenization", "tokenization")
        request = _detokenize.parse(call.body, self._config)
        check_token_ids("tokens", request.tokens, self._vocabulary)
        limit = self._config.max_model_len
        if len(request.tokens) > limit:
            raise ApiError(
                400,
                f"tokens: {len(request.tokens)} tokens, and the model's context length is {limit}",
                param="tokens",
                code="context_length_exceeded",
            )
        with errors_named_in(request):
            return answer_of(await handler.create_detokenize(request, raw_request(call)))


def _texts(messages: list[Any]) -> str:
    """All the text of chat messages, in one."""
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in (*contents, *parts)]
    return "".join(text for text in texts if isinstance(text, str))
