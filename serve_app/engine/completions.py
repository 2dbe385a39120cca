"""Chat and text completions of one engine: parse the body, bound it, hand it to vLLM's handlers."""

import hmac
import math
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from starlette.datastructures import State
from starlette.requests import Request
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import unsupported_feature
from serve_app.engine.api_errors import from_response
from serve_app.engine.bounds import check_token_ids, reject
from serve_app.engine.media import check_media
from serve_app.engine.request_body import RequestModel, errors_named_in
from serve_app.engine.serving import Serving
from serve_app.patches.vllm_compat import ErrorResponse

_chat = RequestModel(ChatCompletionRequest)
_completion = RequestModel(CompletionRequest)

_TOKEN_LISTS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")

ReplyOrFrames = EngineReply | AsyncIterator[str | bytes]
"""A finished reply, or the frames of a stream as vLLM yields them."""


class Completions:
    """vLLM's handlers of completions behind this API's bounds.

    Args:
        max_sequences: Bound on `n` times the number of prompts of one request.
    """

    def __init__(self, serving: Serving, max_sequences: int) -> None:
        self._handlers = serving.state
        self._max_sequences = max_sequences
        self._config = serving.engine.model_config
        self._vocabulary = self._config.get_vocab_size()

    async def chat(self, call: EngineRequest) -> ReplyOrFrames:
        """Chat completion: a reply, or the frames of a stream."""
        handler = find_handler(self._handlers, "openai_serving_chat", "chat completions")
        request = _chat.parse(call.body, self._config)
        check_media(call.body, self._config)
        check_sampling(request, 1, self._max_sequences, self._vocabulary)
        request.cache_salt = cache_salt(call, request.cache_salt)
        with errors_named_in(request):
            return answer_of(await handler.create_chat_completion(request, raw_request(call)))

    async def text(self, call: EngineRequest) -> ReplyOrFrames:
        """Text completion of one or more prompts: a reply, or the frames of a stream."""
        handler = find_handler(self._handlers, "openai_serving_completion", "completions")
        request = _completion.parse(call.body, self._config)
        prompts = check_token_ids("prompt", request.prompt, self._vocabulary)
        check_sampling(request, prompts, self._max_sequences, self._vocabulary)
        request.cache_salt = cache_salt(call, request.cache_salt)
        with errors_named_in(request):
            return answer_of(await handler.create_completion(request, raw_request(call)))


def check_sampling(request: Any, prompts: int, max_sequences: int, vocabulary: int) -> None:
    """Bound the sampling fields that chat and completion requests have in common.

    Raises:
        ApiError: 400 with the field, its value and its bound.
    """
    n = request.n if request.n is not None else 1
    if n < 1:
        raise reject("n", n, "must be at least 1")
    if n * prompts > max_sequences:
        raise reject("n", n, f"n times the {prompts} prompt(s) must be at most {max_sequences}")
    for name in _TOKEN_LISTS:
        for token in getattr(request, name, None) or ():
            if not 0 <= token < vocabulary:
                raise reject(name, token, f"token ids must be from 0 to {vocabulary - 1}")
    for key, bias in (request.logit_bias or {}).items():
        if not key.isascii() or not key.isdigit() or int(key) >= vocabulary:
            raise reject("logit_bias", key, f"keys must be token ids from 0 to {vocabulary - 1}")
        if not math.isfinite(bias):
            raise reject("logit_bias", bias, "must be a finite number")


def find_handler(handlers: State, name: str, feature: str) -> Any:
    """Return vLLM's handler `name`. Raises ApiError 400 if the model does not support `feature`."""
    handler = getattr(handlers, name, None)
    if handler is None:
        raise unsupported_feature(feature)
    return handler


def raw_request(call: EngineRequest) -> Request:
    """Return an HTTP request for vLLM's handlers, which read its id and its trace headers."""
    headers = [(b"x-request-id", call.request_id.encode("latin-1"))]
    if call.trace is not None:
        headers += call.trace.headers()
    return Request({"type": "http", "method": "POST", "headers": headers})


def cache_salt(call: EngineRequest, own: str | None) -> str | None:
    """Return the salt of a prompt's prefix cache: the client's `own`, within that of its API key."""
    if not call.cache_salt or own is None:
        return call.cache_salt or own
    return hmac.new(call.cache_salt.encode(), own.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def answer_of(result: Any) -> ReplyOrFrames:
    """Return what a handler of vLLM has returned. Raises ApiError if that is an error."""
    if isinstance(result, ErrorResponse):
        raise from_response(result)
    if isinstance(result, BaseModel):
        return EngineReply(200, result.model_dump_json().encode())
    stream: AsyncIterator[str | bytes] = result
    return stream
