"""Bounds that vLLM leaves open, checked before a request may reach the engine core.

A value that fails only inside the engine core can end the whole replica, so every value that the core
uses as an index or a size is bounded here.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel

from serve_app.api.errors import ApiError
from serve_app.settings.settings_error import shown

_Bounds = tuple[float, float]

_INT32 = (-(1 << 31), (1 << 31) - 1)
"""The core has most of its numbers in arrays of 32 bits, and NumPy refuses what does not fit."""
_INT64 = (-(1 << 63), (1 << 63) - 1)
_PACKED = (-(1 << 63), (1 << 64) - 1)
"""What MessagePack can carry to the core: JSON of the client's own, such as a schema, may hold these."""
_WIDE = ("seed", "priority")
"""Fields of 64 bits."""
_FLOAT32 = (-3.4e38, 3.4e38)
_FLOAT64 = (-sys.float_info.max, sys.float_info.max)
_RANGES: dict[str, _Bounds] = {
    # The core divides by it, and multiplies with it.
    "repetition_penalty": (1e-3, 1e3),
    # The front end takes the power of a length: 1,000,000 ** 16 is a number, with 52 it no longer is.
    "length_penalty": (-16, 16),
    # The core compares so many patterns after each token, 0.2 us each.
    "max_pattern_size": (0, 1024),
}
_ELSEWHERE = ("messages", "prompt", "input", "tokens")
"""Fields that the core gets as token ids alone, which `check_token_ids` bounds."""


def reject(param: str, value: Any, bound: str) -> ApiError:
    """Return a 400 that names the field, the value and the bound."""
    return ApiError(400, f"{param} = {shown(value)}: {bound}", param=param, code="invalid_value")


def check_numbers(request: Any) -> None:
    """Refuse numbers of a validated request, and of all it holds, that the engine core cannot take.

    Raises:
        ApiError: 400 with the field, its value and its bound.
    """
    found = _first_outside(request)
    if found is not None:
        path, value, (low, high) = found
        finite = math.isfinite(value)
        raise reject(
            path[1:], value, f"must be from {low} to {high}" if finite else "must be a finite number"
        )


def _first_outside(value: Any) -> tuple[str, float, _Bounds] | None:
    """Return the first number outside its bounds: its path below `value`, itself and the bounds.

    The path is made on the way back. With a path for each value, the fields of a small request took 17 us
    in place of 4.
    """
    typed = False
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    elif isinstance(value, BaseModel):
        typed, fields = True, vars(value)
        # What has not been given is a default, and fits.
        members = ((name, fields.get(name)) for name in value.model_fields_set if name not in _ELSEWHERE)
    elif is_dataclass(value):
        typed, members = True, vars(value).items()
    for name, item in members:
        kind = type(item)
        if kind is str or kind is bool or item is None:
            continue
        if kind is int or kind is float:
            bounds = _bounds_of(name, kind) if typed else _PACKED if kind is int else _FLOAT64
            found = None if bounds[0] <= item <= bounds[1] else ("", item, bounds)
        else:
            found = _first_outside(item)
        if found is not None:
            part = f"[{name}]" if isinstance(value, list) else f".{_name_in_body(value, name)}"
            return (part + found[0], *found[1:])
    return None


def _bounds_of(name: str, kind: type) -> _Bounds:
    bounds = _RANGES.get(name)
    if bounds is not None:
        return bounds
    return _FLOAT32 if kind is float else _INT64 if name in _WIDE else _INT32


def _name_in_body(model: Any, name: str) -> str:
    field = type(model).model_fields.get(name) if isinstance(model, BaseModel) else None
    return name if field is None or field.alias is None else field.alias


def check_characters(param: str, text: Any, max_model_len: int, tokenizer: Any) -> None:
    """Refuse a text that is too long for the context whatever its tokens are, before it is tokenized.

    Raises:
        ApiError: 400 with the number of characters and the bound.
    """
    longest = max_model_len * tokenizer.max_chars_per_token
    for item in text if isinstance(text, list) else (text,):
        if isinstance(item, str) and len(item) > longest:
            raise ApiError(
                400,
                f"{param}: {len(item)} characters, and the model's context length is {max_model_len} tokens, "
                f"which are at most {longest} characters",
                param=param,
                code="context_length_exceeded",
            )


def check_inputs(param: str, value: Any, most: int) -> None:
    """Refuse a list of more than `most` texts or prompts. Raises ApiError 400."""
    if isinstance(value, list) and len(value) > most and not isinstance(value[0], int):
        raise ApiError(
            400,
            f"{param}: {len(value)} inputs; at most {most} are accepted",
            param=param,
            code="invalid_value",
        )


def check_token_ids(param: str, value: Any, vocabulary: int) -> int:
    """Bound the token ids of a prompt field, if it has any; return its number of prompts."""
    if not isinstance(value, list):
        return 1
    if value and isinstance(value[0], int):
        for token in value:
            if not 0 <= token < vocabulary:
                raise reject(param, token, f"token ids must be from 0 to {vocabulary - 1}")
        return 1
    for item in value:
        if isinstance(item, list):
            check_token_ids(param, item, vocabulary)
    return len(value)
