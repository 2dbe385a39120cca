"""OpenAI's Responses on vLLM's handler. Nothing is stored: each request carries its whole conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from openai.types.responses import (
    EasyInputMessageParam,
    ResponseCustomToolCallOutputParam,
    ResponseCustomToolCallParam,
    ResponseFunctionToolCallParam,
    ResponseOutputMessage,
    ResponseReasoningItemParam,
)
from openai.types.responses.response_input_item_param import FunctionCallOutput
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from serve_app.api.dialect import response_id
from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError, invalid_field, invalid_value
from serve_app.engine.api_errors import from_validation
from serve_app.engine.engine_stream import EngineStream
from serve_app.engine.number_bounds import check_sampling
from serve_app.engine.operations import ReplyOrFrames, Serving, ask
from serve_app.engine.request_body import RequestModel
from serve_app.patches.vllm import Method, replace_random_ids

RESPONSES = RequestModel(ResponsesRequest, "input")
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
_NOBODY_FETCHES = "nobody could fetch the response later, because this server stores none"


async def create_response(serving: Serving, call: EngineRequest) -> ReplyOrFrames:
    """Create a response. Returns a reply, or the frames of a stream."""
    handler = serving.handler("openai_serving_responses", "responses")
    try:
        request = serving.parse(call, RESPONSES)
    except ApiError as error:
        if error.param == "background" and "`store`" in error.message:
            # vLLM's message would lead to a field that is refused too.
            raise _refusal("background", _NOBODY_FETCHES) from error
        raise _wrong_item(error, call.body) from error
    _refuse_storage(request)
    if request.previous_input_messages is not None and not handler.use_harmony:
        raise _refusal("previous_input_messages", "this model reads its messages from `input` only")
    _check_answers(request.input)
    check_sampling(request, 1, serving.max_sequences, serving.vocabulary)
    request.tools = _callable_tools(request)
    request.store = False
    request.request_id = response_id(call.request_id)
    answer = await ask(handler.create_responses, request, call, by_alias=True)
    return answer if isinstance(answer, EngineReply) else _frames(answer)


async def _frames(events: Any) -> AsyncIterator[bytes]:
    """Yield the SSE frames of vLLM's events, as vLLM's server writes them."""
    try:
        async for event in events:
            yield f"event: {event.type}\ndata: {event.model_dump_json(by_alias=True)}\n\n".encode()
    finally:
        await events.aclose()


def _refuse_storage(request: ResponsesRequest) -> None:
    """Raise ApiError 400 for a request that needs a stored response."""
    if request.previous_response_id is not None:
        raise _refusal("previous_response_id", _WHOLE_CONVERSATION)
    if (request.model_extra or {}).get("conversation") is not None:
        raise _refusal("conversation", _WHOLE_CONVERSATION)
    if request.background:
        raise _refusal("background", _NOBODY_FETCHES)
    if request.store and "store" in request.model_fields_set:
        raise _refusal("store", "this server stores no responses: leave `store` out, or send false")


def _callable_tools(request: ResponsesRequest) -> list[Any]:
    """Return the tools that the model can call.

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
    return tools


def _wrong_item(error: ApiError, body: bytes) -> ApiError:
    """Return the error of the first wrong item of `input`, if `error` is there.

    Pydantic reports errors for each of 60 models of an item. The item's type selects one of them.
    """
    there = isinstance(error.__cause__, ValidationError) and (error.param or "").startswith("input")
    items = from_json(body).get("input") if there else None
    for number, item in enumerate(items if isinstance(items, list) else ()):
        path = f"input[{number}]"
        if not isinstance(item, dict):
            return invalid_value(path, item, "must be an object")
        kind = item.get("type", "message")
        adapter = _ITEMS.get(kind) if isinstance(kind, str) else None
        if adapter is None:
            return invalid_value(f"{path}.type", kind, f"must be one of {', '.join(_ITEMS)}")
        try:
            adapter.validate_python({"id": "", **item})  # vLLM makes an id for an item without one
        except ValidationError as wrong:
            return from_validation(wrong, path)
    return error


def _check_answers(items: Any) -> None:
    """Raise ApiError 400 for earlier answers that vLLM cannot read."""
    if items == []:
        raise invalid_value("input", items, "must have at least one item")
    for number, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, ResponseOutputMessage) and not hasattr(next(iter(item.content), None), "text"):
            path = f"input[{number}].content"
            raise invalid_field(path, "must begin with a text")


def _refusal(field: str, why: str) -> ApiError:
    return invalid_field(field, f"{why}.", "unsupported_feature")


def _draw_id(draw: Method) -> Method:
    def wrapped() -> str:
        stream = EngineStream.current()
        drawn: str = draw() if stream is None else stream.new_id() or draw()
        return drawn

    return wrapped


replace_random_ids(_draw_id)
