"""Parse a request body into vLLM's request model. Errors name the field at fault."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, get_args, get_origin

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from vllm.config import ModelConfig
from vllm.entrypoints.anthropic.protocol import AnthropicMessage
from vllm.renderers.chat_utils import MM_PARSER_MAP

from serve_app.api.body import DOCUMENTS, MEMBERS, NULL
from serve_app.api.errors import NOT_JSON, ApiError, invalid_field, invalid_value, missing_field
from serve_app.engine.api_errors import from_exception, from_validation
from serve_app.engine.number_bounds import check_numbers

logger = logging.getLogger("ray.serve")

_TEXT_IN = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "tool_reference": "name",
}
"""The field with a content part's text, by the part's type."""
_BLOCKS = {
    # By the place: the types of Anthropic's blocks that vLLM reads there, with the field of their content.
    "user": {"text": "text", "image": "source", "tool_result": "tool_use_id"},
    "assistant": {"text": "text", "image": "source", "thinking": "thinking", "tool_use": "name"},
    "system": {"text": "text", "tool_addition": "tool", "tool_removal": "tool"},
    "tool_result": {"text": "text", "image": "source", "tool_reference": "tool_name"},
    "source": {"base64": "data", "url": "url"},
}
_NULLABLE_TEXT = ("text", "refusal")
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
"""vLLM ignores these fields, which some clients send: it constrains answers with `structured_outputs`."""
_NOTHING = msgspec.Raw(b"[]")
_PROMPTS = ("messages", "prompt", "input", *DOCUMENTS)
_BODY_FIELDS_OF = {
    # vLLM's name of a parameter: the fields of the body that set it.
    "extra_args": ("vllm_xargs", "kv_transfer_params", "ec_transfer_params"),
    "input_tokens": _PROMPTS,
    "parameters": ("tools",),
    "input_text": _PROMPTS,
    "structured_outputs": ("structured_outputs", "response_format", "output_config", "text", "tools"),
    "max_tokens": ("max_completion_tokens", "max_tokens", "max_output_tokens"),
    "max_completion_tokens": ("max_completion_tokens", "max_tokens"),
    "stop": ("stop", "stop_sequences"),
    "logprobs": ("top_logprobs", "logprobs"),
}


class RequestModel:
    """One of vLLM's request models, or a union of several.

    Args:
        model: The type of a body.
        messages: The field that has the conversation.
        ignored: The fields that vLLM ignores, although their clients expect another answer.
    """

    def __init__(self, model: Any, messages: str = "messages", ignored: Iterable[str] = ()) -> None:
        self._messages = messages
        self._ignored = {name: f'"{name}"'.encode() for name in (*ignored, *_GUIDED)}
        self._adapter: TypeAdapter[Any] = TypeAdapter(model)
        union = get_args(model)[0] if get_origin(model) is Annotated else model
        self._models: tuple[type[BaseModel], ...] = get_args(union) or (union,)

    def parse(self, body: bytes, config: ModelConfig) -> Any:
        """Return the request in `body`. The engine core can take all its numbers.

        A top-level field that is `null` counts as not given, because typed clients send such fields.

        Raises:
            ApiError: 400 with the field, its value and the bound.
        """
        if b"null" in body:
            body = _drop_nulls(body)
        try:
            request = self._adapter.validate_json(body)
        except Exception as error:
            raise self._failure(body, error) from error
        for name, key in self._ignored.items():
            if key in body and MEMBERS.decode(body).get(name, _NOTHING) != _NOTHING:
                raise invalid_field(name, "this server has no such feature", "unsupported_feature")
        check_numbers(request)
        messages = getattr(request, self._messages, None)
        if isinstance(messages, list):
            if self._messages == "input":  # pydantic has made models of items that are no messages
                messages = [item if isinstance(item, dict) else {} for item in messages]
            # An embedding request may have its conversation in `input`, which vLLM copies to `messages`.
            path = "input" if "input" in request.model_fields_set else self._messages
            _check_messages(path, messages, config.is_multimodal_model or config.enable_prompt_embeds)
        return request

    def _failure(self, body: bytes, error: Exception) -> ApiError:
        if isinstance(error, ValidationError) and len(self._models) == 1:
            return from_validation(error)
        failure = from_exception(error, log=False)  # never the server's fault
        if failure.param is not None and not isinstance(error, ValidationError):
            return failure
        # Some of vLLM's validators run before the types are checked, and raise other errors for wrong types.
        try:
            members = from_json(body)
        except ValueError:
            return failure
        if not isinstance(members, dict):
            return failure
        found = _first_wrong(self._intended_model(members), members)
        if found is not None:
            return found
        if failure.status >= 500:
            logger.warning("a request could not be validated", exc_info=error)
        return ApiError(400, failure.message, param=failure.param, code="invalid_value")

    def _intended_model(self, members: dict[str, Any]) -> type[BaseModel]:
        """Return the model with the most required fields in the body: pydantic reports errors for each."""

        def required(model: type[BaseModel]) -> int:
            return sum(field.is_required() and name in members for name, field in model.model_fields.items())

        return max(self._models, key=required)


def _drop_nulls(body: bytes) -> bytes:
    try:
        members = MEMBERS.decode(body)
    except NOT_JSON:
        return body
    given = {name: value for name, value in members.items() if value != NULL}
    return body if len(given) == len(members) else msgspec.json.encode(given)


@cache
def _field_adapter(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    field = model.model_fields[name]
    annotation: Any = field.annotation
    return TypeAdapter(Annotated[annotation, *field.metadata] if field.metadata else annotation)


def _first_wrong(model: type[BaseModel], members: dict[str, Any]) -> ApiError | None:
    """Return the error about the first field whose value is not of the field's own type."""
    for name, field in model.model_fields.items():
        if name not in members:
            if field.is_required():
                return missing_field(name)
            continue
        try:
            _field_adapter(model, name).validate_python(members[name])
        except ValidationError as error:
            return from_validation(error, name)
        except Exception as error:  # a validator of the field has failed on the value
            return invalid_field(name, str(error))
    return None


def _check_messages(path: str, messages: list[Any], media: bool) -> None:
    """Turn pydantic's lazily validated iterators into lists, and check the content parts.

    vLLM checks a part when it renders the prompt, and its errors do not name the part's path in the body.

    Args:
        path: The path of `messages` in the body.
        messages: The messages, changed in place.
        media: Whether the model takes other input than text.
    """
    for index, message in enumerate(messages):
        at = f"{path}[{index}]"
        if isinstance(message, list):  # one conversation of several
            _check_messages(at, message, media)
            continue
        if isinstance(message, AnthropicMessage):
            _check_blocks(at, message.role, message.model_dump(exclude_none=True), media)
            continue
        if not isinstance(message, dict):
            raise invalid_field(at, "must have a role")
        for name, value in message.items():
            if isinstance(value, Iterator):
                try:
                    message[name] = list(value)
                except ValidationError as error:
                    raise from_validation(error, f"{at}.{name}") from None
        for name in ("function_call", "audio"):
            if message.get(name) is not None:
                raise invalid_field(f"{at}.{name}", "prompts have no place for it", "unsupported_feature")
        if isinstance(refusal := message.get("refusal"), str):  # vLLM reads it as a part only
            content = message.get("content") or []
            texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            message["content"] = [*texts, {"type": "refusal", "refusal": refusal}]
        for part_path, part in _parts(at, message):
            check_part(part_path, part, media)


def check_part(path: str, part: dict[str, Any], media: bool) -> str:
    """Return the text of a content part; "" for media. Raises ApiError 400 for a part that cannot be read."""
    kind = part.get("type")
    if kind is not None and not isinstance(kind, str):
        raise invalid_value(f"{path}.type", kind, "must be a string")
    name = _TEXT_IN.get(kind or "")
    if name is None:
        if media:
            if kind is not None and kind not in MM_PARSER_MAP:
                raise invalid_value(f"{path}.type", kind, f"must be one of {', '.join(MM_PARSER_MAP)}")
            if kind == "input_image" and part.get("image_url") is None:
                raise missing_field(f"{path}.image_url")
            return ""
        if kind is None and "text" in part:
            raise missing_field(f"{path}.type")
        why = f"only text can be here, and no part of type {kind!r:.100}"
        raise invalid_field(path, why, "unsupported_feature")
    if name not in part:
        raise missing_field(f"{path}.{name}")
    value = part[name]
    if not isinstance(value, str) and (value is not None or kind not in _NULLABLE_TEXT):
        raise invalid_value(f"{path}.{name}", value, "must be a string")
    return value or ""


def _check_blocks(path: str, place: str, holder: dict[str, Any], media: bool) -> None:
    for at, block in _parts(path, holder):
        check_block(at, place, block)
        if block["type"] == "image":
            if not media:
                raise invalid_field(at, "this model takes text, and no image", "unsupported_feature")
            check_block(f"{at}.source", "source", block["source"])
        elif block["type"] == "tool_result":
            _check_blocks(at, "tool_result", block, media)


def check_block(path: str, place: str, block: Any) -> None:
    """Raise ApiError 400 for a block of Anthropic's that vLLM would leave out in this `place`."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind not in list(_BLOCKS[place]):
        raise invalid_value(f"{path}.type", kind, f"must be one of {', '.join(_BLOCKS[place])} in this place")
    if (value := block.get(name := _BLOCKS[place][kind])) is None:
        raise missing_field(f"{path}.{name}")
    if name == "text" and not isinstance(value, str):
        raise invalid_value(f"{path}.{name}", value, "must be a string")


@contextmanager
def name_field_in_errors(request: Any) -> Iterator[None]:
    """Raise an error of the block as an `ApiError` whose `param` is a path in the body of `request`."""
    try:
        yield
    except Exception as error:
        failure = from_exception(error)
        param = failure.param
        if failure.status < 500 and (path := _path_of(param, failure.message, request)) != param:
            if param and failure.message.startswith((f"{param} =", f"{param}:")):
                failure.message = f"{path}{failure.message.removeprefix(param)}"
            failure.param = path
        if failure is error:
            raise
        raise failure from error


def _path_of(param: str | None, message: str, request: Any) -> str | None:
    """Return the path in the body of vLLM's `param`, or of the field that `message` begins with."""
    fields = type(request).model_fields
    named = param or message.partition(" ")[0].strip("`'")
    for name in _BODY_FIELDS_OF.get(named, ()):
        if name in request.model_fields_set:
            return name
    if param is None:
        return named if named in fields else None
    head = param.partition(".")[0]
    messages = getattr(request, "messages", None)
    if head in fields:
        return param
    if not isinstance(messages, list):  # of Responses, or a prompt
        return "input" if isinstance(getattr(request, "input", None), list) else param
    for index, message in enumerate(messages):
        if isinstance(message, dict):
            at = f"messages[{index}]"
            for path, found in (*_parts(at, message), (at, message)):
                if head in found:
                    return f"{path}.{param}"
    return "messages"


def _parts(path: str, message: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, part) for the parts of the message, or of the output of a tool, at `path`."""
    for name in ("content", "output"):
        parts = message.get(name)
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict):
                yield f"{path}.{name}[{number}]", part
