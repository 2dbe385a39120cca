"""Anthropic's Messages API on vLLM's handler, which answers a message as a chat completion."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest

from serve_app.api.dialect import COMPLETIONS
from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ERROR_EVENT, unsupported_feature
from serve_app.engine.api_errors import from_response
from serve_app.engine.media import check_media
from serve_app.engine.operations import ReplyOrFrames, Serving, cache_salt, raw_request
from serve_app.engine.request_body import RequestModel, name_field_in_errors
from serve_app.patches.vllm import Method, wrap_message_stream
from serve_app.patches.vllm_compat import ErrorResponse

MESSAGES = RequestModel(AnthropicMessagesRequest)
COUNT_TOKENS = RequestModel(AnthropicCountTokensRequest)


class MessagesOperation:
    """The operations of the Messages API on one engine."""

    def __init__(self, serving: Serving) -> None:
        self._engine = serving.engine
        self._config = serving.engine.model_config
        self._handler: Any = getattr(serving.state, "anthropic_serving_messages", None)
        if self._handler is not None and "message_stream_converter" not in vars(self._handler):
            # vLLM knows the cached tokens of every prompt, and reports them only if it is asked to.
            self._handler.enable_prompt_tokens_details = True
            wrap_message_stream(self._handler, _with_errors_of_chat)

    async def create(self, call: EngineRequest) -> ReplyOrFrames:
        """Answer a conversation. Returns a reply, or the frames of a stream."""
        request = self._parse(call, MESSAGES)
        request.cache_salt = cache_salt(call, request.cache_salt)
        if request.thinking is not None and request.thinking.type == "enabled" and not self._thinks():
            # A model that does not think keeps within any budget. vLLM refuses the field, which agents send.
            request.thinking = None
        with name_field_in_errors(request):
            return _answer(await self._handler.create_messages(request, raw_request(call)))

    async def count_tokens(self, call: EngineRequest) -> ReplyOrFrames:
        """Count the tokens of a conversation."""
        request = self._parse(call, COUNT_TOKENS)
        with name_field_in_errors(request):
            return _answer(await self._handler.count_tokens(request, raw_request(call)))

    def _thinks(self) -> bool:
        reasoning = getattr(self._engine.vllm_config, "reasoning_config", None)
        return reasoning is not None and bool(reasoning.enabled)

    def _parse(self, call: EngineRequest, model: RequestModel) -> Any:
        if self._handler is None:
            raise unsupported_feature("messages")
        request = model.parse(call.body, self._config)
        check_media(call.body, self._config)
        return request


def _answer(result: Any) -> ReplyOrFrames:
    """Return the handler's result. Raises ApiError if the result is an error."""
    if isinstance(result, ErrorResponse):
        raise from_response(result)
    if isinstance(result, AsyncIterator):
        return result
    return EngineReply(200, result.model_dump_json(exclude_none=True).encode())


def _with_errors_of_chat(convert: Method) -> Method:
    """Have a stream end with the chat's own error frame, which has its status and its field.

    vLLM cannot convert that frame. It would report that the frame has no `choices`.
    """

    async def events(chat: AsyncGenerator[str]) -> AsyncGenerator[str]:
        failure = ""

        async def until_failure() -> AsyncGenerator[str]:
            nonlocal failure
            async for frame in chat:
                if frame.startswith(_CHAT_ERROR):
                    failure = frame
                    return
                yield frame

        async with aclosing(chat):
            async for event in convert(until_failure()):
                if event.startswith(_OWN_ERROR):
                    raise RuntimeError(f"vLLM could not convert a chat completion: {event}")
                yield event
            if failure:
                yield failure

    return events


_CHAT_ERROR, _OWN_ERROR = COMPLETIONS.error_frame.decode(), ERROR_EVENT.decode()
