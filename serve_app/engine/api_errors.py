"""Turn what vLLM raises or returns into the API's errors: a client's mistake is never a 5xx."""

import logging
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import ValidationError
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.v1.engine.exceptions import EngineDeadError

from serve_app.api.errors import ApiError, missing_field
from serve_app.settings.settings_error import shown
from serve_app.wire.data_plane import ENGINE_DEAD, ENGINE_DIED, ENGINE_KILLED

logger = logging.getLogger("ray.serve")

# Segments of a pydantic location that name pydantic's machinery or a union's branch, not a field.
_MACHINERY = re.compile(r"[\[\]{}()]|^(?:function-|json-or-python|lax-or-strict|nullable|tagged-union|is-).*")
_BRANCH = re.compile(r"^(?:[A-Z]\w+|str|int|float|bool|none|list|dict|literal.*|constrained-.*)$")


_TAGS = (("role",), ("type",))
"""Locations that end so belong to the field that selects a union's branch."""

_LOSSES = {ENGINE_DEAD: "has died", ENGINE_DIED: "died", ENGINE_KILLED: "was killed"}


def lost_engine(reason: str) -> ApiError:
    """Return a 503 for a request whose engine core is gone, with a `reason` of the data plane."""
    return ApiError(503, f"The engine of this model {_LOSSES[reason]}; it is being replaced.", code=reason)


def not_continuable() -> ApiError:
    """Return a 409 for a stream that no other engine can continue."""
    return ApiError(
        409, "This answer cannot be continued after the engine that began it.", code="not_continuable"
    )


def field_path(location: Sequence[int | str], path: str = "") -> str | None:
    """Return `("messages", 0, "ChatMessageParam", "role")` as `messages[0].role`, below the given path."""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        # A form's lists have names that end with [].
        elif (part.endswith("[]") or not _MACHINERY.search(part)) and not (path and _BRANCH.match(part)):
            path += f".{part}" if path else part
    return path or None


def from_validation(error: ValidationError, outer: str = "") -> ApiError:
    """Return a 400 that names the first wrong field, its value and what is allowed.

    Args:
        outer: The path of the validated value in the body; empty for the whole body.
    """
    item = _likeliest(error.errors(include_url=False))
    param = field_path(item["loc"], outer)
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "missing":
        return missing_field(param)
    if param is not None and not isinstance(item.get("input"), dict):
        message = f"{param} = {shown(item['input'])}: {message}"
    return ApiError(400, message, param=param, code="invalid_value")


def _likeliest(errors: Sequence[Any]) -> dict[str, Any]:
    """Return the first error of the intended branch. Pydantic reports an error for each branch of a union.

    The client did not intend a branch with another `role` or `type`.
    """
    tags = [item for item in errors if item["type"] == "literal_error" and item["loc"][-1:] in _TAGS]
    others = {item["loc"][:-1] for item in tags}
    branches = {path for path in others if path and isinstance(path[-1], str) and _BRANCH.match(path[-1])}
    meant = (i for i in errors if not any(i["loc"][:end] in branches for end in range(1, len(i["loc"]))))
    found = list(meant) or list(errors)
    # A client that sent a list did not intend a text.
    intended = (i for i in found if i["type"] != "string_type" or not isinstance(i["input"], list))
    item = next(intended, (tags or found)[0])
    beside = [tag for tag in tags if tag["loc"][:-1] == item["loc"][:-1]]
    return dict(beside[0] if beside and item["type"] == "missing" else item)


def from_response(response: ErrorResponse) -> ApiError:
    """Return vLLM's own error document as an error of this API."""
    return _api_error(response.error.message, response.error.code, response.error.param)


def from_exception(error: Exception, *, log: bool = True) -> ApiError:
    """Return the API error for an exception of an operation. Only the server's faults are 5xx and logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return from_validation(error)
    if isinstance(error, EngineDeadError):
        return lost_engine(ENGINE_DIED)
    response = create_error_response(error)
    if log and response.error.code >= 500 and response.error.code != 501:
        logger.error("an engine operation failed", exc_info=error)
    return from_response(response)


def from_frame(frame: bytes) -> ApiError:
    """Return the error in a frame of vLLM that begins as the dialect's `error_frame`."""
    error = msgspec.json.decode(frame.partition(b"data: ")[2])["error"]
    code = error.get("code")
    return _api_error(error.get("message", ""), code if isinstance(code, int) else 500, error.get("param"))


def _api_error(message: str, status: int, param: str | None) -> ApiError:
    if status == 501:  # vLLM does not support the request
        return ApiError(400, message, param=param, code="unsupported_feature")
    if status == 404:
        return ApiError(404, message, param=param or "model", code="model_not_found")
    if status >= 500:
        return ApiError(status, message, param=param, code="engine_error")
    lowered = message.lower()
    if "context length" in lowered or "max_model_len" in lowered or "maximum model length" in lowered:
        return ApiError(400, message, param=param, code="context_length_exceeded")
    return ApiError(status, message, param=param, code="invalid_value")
