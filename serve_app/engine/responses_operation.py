"""OpenAI's Responses on vLLM's handler. Nothing is stored: each request carries its whole conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from openai.types.responses import (
    EasyInputMessageParam,
    ResponseCustomToolCallOutputParam,
    ResponseCustomToolCallParam,
    ResponseFunctionToolCallParam,
    ResponseReasoningItemParam,
    ToolChoiceAllowed,
)
from openai.types.responses.response_input_item_param import FunctionCallOutput
from pydantic import TypeAdapter, ValidationError, model_validator
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from serve_app.api.dialect import response_id
from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError, invalid_field, invalid_value
from serve_app.engine.api_errors import from_validation
from serve_app.engine.chat_operations import ReplyOrFrames, Serving, ask
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.number_bounds import check_sampling
from serve_app.engine.request_body import RequestModel, check_part
from serve_app.patches.vllm import Method, replace_random_ids

_CALLABLE_TOOLS = ("function", "custom", "namespace")
"""Tools that the model can call, and the client runs. A server would have to run all others."""
_ITEMS: dict[str, TypeAdapter[Any]] = {
    "message": TypeAdapter(EasyInputMessageParam),
    "reasoning": TypeAdapter(ResponseReasoningItemParam),
    "function_call": TypeAdapter(ResponseFunctionToolCallParam),
    "function_call_output": TypeAdapter(FunctionCallOutput),
    "custom_tool_call": TypeAdapter(ResponseCustomToolCallParam),
    "custom_tool_call_output": TypeAdapter(ResponseCustomToolCallOutputParam),
}
"""The items of `input` that vLLM knows, by their type."""
_WHOLE_CONVERSATION = "this server stores no responses: send the whole conversation in `input`"
_STORED = {
    "previous_response_id": _WHOLE_CONVERSATION,
    "conversation": _WHOLE_CONVERSATION,
    "background": "nobody could fetch the response later, because this server stores none",
    "store": "this server stores no responses: leave `store` out, or send false",
}
"""The fields that need a stored response."""


class _Request(ResponsesRequest):  # type: ignore[misc]  # vLLM has no types
    """vLLM's model of a request, with items that vLLM reads whole, and no need of a stored response."""

    @model_validator(mode="before")
    @classmethod
    def check(cls, body: Any) -> Any:
        """Return the fields of a body. Raises ApiError 400 for what would not be done."""
        fields = body if isinstance(body, dict) else {}
        for name, why in _STORED.items():
            if fields.get(name) not in (None, False):
                raise _refusal(name, why)
        if isinstance(items := fields.get("input"), list):
            if not items:
                raise invalid_value("input", items, "must have at least one item")
            fields["input"] = [_whole(f"input[{number}]", item) for number, item in enumerate(items)]
        return body


RESPONSES = RequestModel(_Request, "input")


async def create_response(serving: Serving, call: EngineCall) -> ReplyOrFrames:
    """Create a response. Returns a reply, or the frames of a stream."""
    handler = serving.handler("openai_serving_responses", "responses")
    request = serving.parse(call, RESPONSES)
    if request.previous_input_messages is not None and not handler.use_harmony:
        raise _refusal("previous_input_messages", "this model reads its messages from `input` only")
    check_sampling(request, 1, serving.max_sequences, serving.vocabulary)
    request.tools = _callable_tools(request)
    request.store = False
    request.request_id = response_id(call.request_id)
    answer = await ask(handler.create_responses, request, call, by_alias=True)
    if isinstance(answer, EngineReply):
        return EngineReply(answer.status, answer.body[:-1] + b',"error":null}')  # OpenAI's always have it
    return _frames(answer)


async def _frames(events: Any) -> AsyncIterator[bytes]:
    """Yield the SSE frames of vLLM's events. The end of an answer that was cut is OpenAI's."""
    try:
        async for event in events:
            if event.type == "response.completed" and event.response.status == "incomplete":
                event.type = "response.incomplete"  # a value that vLLM's model of the event does not know
            if (response := getattr(event, "response", None)) is not None:
                response.error = None  # OpenAI's always have it
            data = event.model_dump_json(by_alias=True, warnings=False)
            yield f"event: {event.type}\ndata: {data}\n\n".encode()
    finally:
        await events.aclose()


def _callable_tools(request: ResponsesRequest) -> list[Any]:
    """Return the tools that the model can call. A `tool_choice` of some tools becomes its mode.

    Agents offer tools such as `web_search` to every server. So the other tools are left out, as vLLM does,
    unless the request depends on them.

    Raises:
        ApiError: 400, if the model can call no tool of the request, or `tool_choice` is one of the others.
    """
    tools = [tool for tool in request.tools if tool.type in _CALLABLE_TOOLS]
    others = [tool.type for tool in request.tools if tool.type not in _CALLABLE_TOOLS]
    choice = request.tool_choice
    known = f"this server runs no tools; it takes tools of type {', '.join(_CALLABLE_TOOLS)}"
    if not isinstance(choice, str) and choice.type not in (*_CALLABLE_TOOLS, "allowed_tools"):
        raise _refusal("tool_choice", f"type {choice.type!r}: {known}")
    if others and not tools:
        raise _refusal("tools", f"type {others[0]!r}: {known}")
    if isinstance(choice, ToolChoiceAllowed):  # vLLM would let the model call every tool, or none
        names, allowed = [tool.name for tool in tools], [tool.get("name") for tool in choice.tools]
        if not allowed or any(name not in names for name in allowed):
            raise invalid_value("tool_choice.tools", choice.tools, "must name some of `tools`")
        request.tool_choice = choice.mode
        tools = [tool for tool in tools if tool.name in allowed]
    return tools


def _whole(path: str, item: Any) -> Any:
    """Return the item at `path` of `input` in a form that vLLM reads whole, without fields that are null.

    Of an answer and of its reasoning, vLLM reads the first part only, and no refusal.

    Raises:
        ApiError: 400 for an item or a part that vLLM does not read. Pydantic would report errors for each of
            60 models of an item.
    """
    if not isinstance(item, dict):
        raise invalid_value(path, item, "must be an object")
    item = {name: value for name, value in item.items() if value is not None}
    kind, content = item.get("type", "message"), item.get("content")
    if kind not in list(_ITEMS):
        raise invalid_value(f"{path}.type", kind, f"must be one of {', '.join(_ITEMS)}")
    for part in (*_list(content), *_list(item.get("output"))):
        if isinstance(part, dict) and part.get("type") == "input_image":
            part["detail"] = part.get("detail") or "auto"
    checked = item
    if kind == "message" and item.get("role") == "assistant" and isinstance(content, list):
        text = "".join(_texts(f"{path}.content", content))
        checked = {**item, "content": text}
        item = {**item, "type": kind, "content": [{"type": "output_text", "text": text}]}
    elif kind == "reasoning":
        if item.get("encrypted_content"):
            why = "only the server that encrypted it can read it: leave the item out"
            raise _refusal(f"{path}.encrypted_content", why)
        if texts := _texts(f"{path}.content", content) or _texts(f"{path}.summary", item.get("summary")):
            text = "\n".join(texts)
            item = checked = {"summary": [], **item, "content": [{"type": "reasoning_text", "text": text}]}
    try:
        _ITEMS[kind].validate_python({"id": "", **checked})  # vLLM makes an id for an item without one
    except ValidationError as wrong:
        raise from_validation(wrong, path) from None
    return item


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(path: str, parts: Any) -> list[str]:
    return [
        check_part(f"{path}[{number}]", part if isinstance(part, dict) else {}, media=False)
        for number, part in enumerate(_list(parts))
    ]


def _refusal(field: str, why: str) -> ApiError:
    return invalid_field(field, f"{why}.", "unsupported_feature")


def _draw_id(draw: Method) -> Method:
    def wrapped() -> str:
        call = EngineCall.current()
        drawn: str = draw() if call is None else call.new_id() or draw()
        return drawn

    return wrapped


replace_random_ids(_draw_id)
