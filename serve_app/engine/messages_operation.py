"""Anthropic's Messages API on vLLM's handler, which answers a message as a chat completion."""

from __future__ import annotations

from json import JSONDecodeError
from typing import Any

import msgspec
from pydantic import ValidationError
from vllm.entrypoints.anthropic.protocol import (
    AnthropicContentBlock,
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)

from serve_app.api.body import MEMBERS, NULL
from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError, invalid_field
from serve_app.engine.chat_operations import ReplyOrFrames, Serving, ask
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.request_body import RequestModel, check_block

MESSAGES = RequestModel(
    AnthropicMessagesRequest, ignored=("container", "mcp_servers", "output_format", "prefill", "thread")
)
COUNT_TOKENS = RequestModel(AnthropicCountTokensRequest)
_HANDLER = "anthropic_serving_messages"


async def create_message(serving: Serving, call: EngineCall) -> ReplyOrFrames:
    """Answer a conversation. Returns a reply, or the frames of a stream."""
    handler = serving.handler(_HANDLER, "messages")
    request = _parse(serving, call, MESSAGES)
    if request.thinking is not None and request.thinking.type == "enabled" and not _thinks(serving):
        # A model that does not think keeps within any budget. vLLM refuses the field, which agents send.
        request.thinking = None
    try:
        answer = await ask(handler.create_messages, request, call, exclude_none=True)
    except ApiError as error:
        if _is_of_arguments(error.__cause__):
            why = (
                "the model called a tool with arguments that are no JSON object. With `strict: true` on the "
                "tool, the engine enforces its `input_schema`."
            )
            raise invalid_field("tools", why, "invalid_tool_call") from error
        raise
    if isinstance(answer, EngineReply):  # Anthropic's messages always have the field, as streams do
        message = MEMBERS.decode(answer.body)
        message.setdefault("stop_sequence", NULL)
        return EngineReply(answer.status, msgspec.json.encode(message))
    return answer


async def count_tokens(serving: Serving, call: EngineCall) -> ReplyOrFrames:
    """Count the tokens of a conversation."""
    handler = serving.handler(_HANDLER, "messages")
    request = _parse(serving, call, COUNT_TOKENS)
    return await ask(handler.count_tokens, request, call, exclude_none=True)


def _parse(serving: Serving, call: EngineCall, model: RequestModel) -> Any:
    request = serving.parse(call, model)
    for number, block in enumerate(request.system if isinstance(request.system, list) else ()):
        check_block(f"system[{number}]", "system", vars(block))
    return request


def _thinks(serving: Serving) -> bool:
    reasoning = getattr(serving.engine.vllm_config, "reasoning_config", None)
    return reasoning is not None and bool(reasoning.enabled)


def _is_of_arguments(error: BaseException | None) -> bool:
    """Whether vLLM raised `error` while it made a block of the arguments that the model wrote for a tool."""
    if isinstance(error, ValidationError):
        return bool(error.title == AnthropicContentBlock.__name__)
    return isinstance(error, JSONDecodeError)
