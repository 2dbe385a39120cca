"""Anthropic's Messages API on vLLM's handler, which answers a message as a chat completion."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from json import JSONDecodeError
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.anthropic.protocol import (
    AnthropicContentBlock,
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)

from serve_app.api.dialect import COMPLETIONS
from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ERROR_EVENT, ApiError
from serve_app.engine.operations import ReplyOrFrames, Serving, ask
from serve_app.engine.request_body import RequestModel
from serve_app.patches.vllm import Method, wrap_message_stream

MESSAGES = RequestModel(AnthropicMessagesRequest)
COUNT_TOKENS = RequestModel(AnthropicCountTokensRequest)
_HANDLER = "anthropic_serving_messages"


class MessagesOperation:
    """The operations of the Messages API on one engine."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        handler: Any = getattr(serving.state, _HANDLER, None)
        if handler is not None and "message_stream_converter" not in vars(handler):
            # vLLM knows the cached tokens of every prompt, and reports them only if it is asked to.
            handler.enable_prompt_tokens_details = True
            wrap_message_stream(handler, _with_errors_of_chat)

    async def create(self, call: EngineRequest) -> ReplyOrFrames:
        """Answer a conversation. Returns a reply, or the frames of a stream."""
        handler = self._serving.handler(_HANDLER, "messages")
        request = self._serving.parse(call, MESSAGES)
        if request.thinking is not None and request.thinking.type == "enabled" and not self._thinks():
            # A model that does not think keeps within any budget. vLLM refuses the field, which agents send.
            request.thinking = None
        try:
            return await ask(handler.create_messages, request, call, exclude_none=True)
        except ApiError as error:
            if _is_of_arguments(error.__cause__):
                raise _not_an_object() from error
            raise

    async def count_tokens(self, call: EngineRequest) -> ReplyOrFrames:
        """Count the tokens of a conversation."""
        handler = self._serving.handler(_HANDLER, "messages")
        request = self._serving.parse(call, COUNT_TOKENS)
        return await ask(handler.count_tokens, request, call, exclude_none=True)

    def _thinks(self) -> bool:
        reasoning = getattr(self._serving.engine.vllm_config, "reasoning_config", None)
        return reasoning is not None and bool(reasoning.enabled)


def _is_of_arguments(error: BaseException | None) -> bool:
    """Whether vLLM raised `error` while it made a block of the arguments that the model wrote for a tool."""
    if isinstance(error, ValidationError):
        return bool(error.title == AnthropicContentBlock.__name__)
    return isinstance(error, JSONDecodeError)


def _not_an_object() -> ApiError:
    return ApiError(
        400,
        "tools: the model called a tool with arguments that are no JSON object. With `strict: true` on the "
        "tool, the engine enforces its `input_schema`.",
        param="tools",
        code="invalid_tool_call",
    )


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
