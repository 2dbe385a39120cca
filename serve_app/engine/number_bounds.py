"""Bounds that vLLM leaves open, checked before a request may reach the engine core.

A value that fails inside the engine core can end the whole replica. So this module bounds every value that
the core uses as an index or a size. `check_...` bound a request's fields, `guard_intake` bounds its
sequences.
"""

import logging
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from typing import Any

import vllm.envs as envs
from pydantic import BaseModel
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.api.errors import invalid_field, invalid_value
from serve_app.patches.vllm import Method, wrap_method

logger = logging.getLogger("ray.serve")

_Bounds = tuple[float, float]

_INT32 = (-(1 << 31), (1 << 31) - 1)
"""The core keeps most numbers in 32-bit arrays, and NumPy refuses larger numbers."""
_INT64 = (-(1 << 63), (1 << 63) - 1)
_PACKED = (-(1 << 63), (1 << 64) - 1)
"""MessagePack's range, for numbers in a client's JSON such as a schema."""
_INT64_FIELDS = ("seed", "priority")
_FLOAT32 = (-3.4e38, 3.4e38)
_FLOAT64 = (-sys.float_info.max, sys.float_info.max)
_RANGES: dict[str, _Bounds] = {
    # The core divides by the penalty and multiplies with the penalty.
    "repetition_penalty": (1e-3, 1e3),
    # The front end computes length ** penalty: 1,000,000 ** 16 fits a float, 1,000,000 ** 52 does not.
    "length_penalty": (-16, 16),
    # The core compares up to this many patterns after each token, 0.2 us each.
    "max_pattern_size": (0, 1024),
}
_TOKEN_LISTS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")
_TOKENIZED = ("messages", "prompt", "input", "tokens")
"""Fields that the core receives as token ids. `check_token_ids` bounds these."""
_UNPACKABLE = (OverflowError, TypeError, ValueError, RecursionError)
"""MessagePack raises these errors for values that it cannot pack."""
_LONGEST = {
    # vLLM's GPU model runner raises above these lengths (`vllm.v1.worker.gpu.sample.logit_bias`).
    "allowed_token_ids": 1024,
    "logit_bias": 1024,
}
_MOST_STOP_TOKENS = 128
"""The bound while `min_tokens` keeps stop tokens from being generated."""


def check_numbers(request: Any) -> None:
    """Refuse numbers anywhere in a validated request that the engine core cannot take.

    Raises:
        ApiError: 400 with the field, its value and its bound.
    """
    found = _first_outside(request)
    if found is not None:
        path, value, (low, high) = found
        finite = math.isfinite(value)
        raise invalid_value(
            path[1:], value, f"must be from {low} to {high}" if finite else "must be a finite number"
        )


def _first_outside(value: Any) -> tuple[str, float, _Bounds] | None:
    """Return the path below `value`, the number and the bounds of the first number outside its bounds.

    The path is built only for that number: a small request takes 4 us, not 17 us with a path per value.
    """
    typed = False
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    elif isinstance(value, BaseModel):
        typed, fields = True, vars(value)
        # Default values are within bounds.
        members = ((name, fields.get(name)) for name in value.model_fields_set if name not in _TOKENIZED)
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
    return _FLOAT32 if kind is float else _INT64 if name in _INT64_FIELDS else _INT32


def _name_in_body(model: Any, name: str) -> str:
    field = type(model).model_fields.get(name) if isinstance(model, BaseModel) else None
    return name if field is None or field.alias is None else field.alias


def check_characters(param: str, text: Any, max_model_len: int, tokenizer: Any) -> None:
    """Refuse a text that cannot fit the context even with the longest tokens, before tokenization.

    Raises:
        ApiError: 400 with the number of characters and the bound.
    """
    longest = max_model_len * tokenizer.max_chars_per_token
    for item in text if isinstance(text, list) else (text,):
        if isinstance(item, str) and len(item) > longest:
            why = (
                f"{len(item)} characters, and the model's context length is {max_model_len} tokens, "
                f"which are at most {longest} characters"
            )
            raise invalid_field(param, why, "context_length_exceeded")


def check_token_ids(param: str, value: Any, vocabulary: int) -> int:
    """Check the token ids in a prompt field, and return the field's number of prompts."""
    if not isinstance(value, list):
        return 1
    if value and isinstance(value[0], int):
        _check_vocabulary(param, value, vocabulary)
        return 1
    for item in value:
        if isinstance(item, list):
            check_token_ids(param, item, vocabulary)
    return len(value)


def check_sampling(request: Any, prompts: int, max_sequences: int, vocabulary: int) -> None:
    """Bound the sampling fields that requests have in common.

    Raises:
        ApiError: 400 with the field, its value and its bound.
    """
    n = getattr(request, "n", None)  # which Responses lacks
    n = 1 if n is None else n
    if n < 1:
        raise invalid_value("n", n, "must be at least 1")
    if n * prompts > max_sequences:
        raise invalid_value("n", n, f"n times the {prompts} prompt(s) must be at most {max_sequences}")
    for name in _TOKEN_LISTS:
        _check_vocabulary(name, getattr(request, name, None) or (), vocabulary)
    biases = getattr(request, "logit_bias", None) or {}
    wrong = [key for key in biases if not (key.isascii() and key.isdigit() and int(key) < vocabulary)]
    if wrong:
        raise invalid_value("logit_bias", _one_or_all(wrong), f"keys must be token ids {_below(vocabulary)}")
    endless = {key: bias for key, bias in biases.items() if not math.isfinite(bias)}
    if endless:
        raise invalid_value("logit_bias", endless, "must be finite numbers")


def _check_vocabulary(param: str, tokens: Sequence[int], vocabulary: int) -> None:
    if wrong := [token for token in tokens if not 0 <= token < vocabulary]:
        raise invalid_value(param, _one_or_all(wrong), f"token ids must be {_below(vocabulary)}")


def _below(vocabulary: int) -> str:
    return f"from 0 to {vocabulary - 1}"


def _one_or_all(wrong: list[Any]) -> Any:
    return wrong[0] if len(wrong) == 1 else wrong


def guard_intake(engine: AsyncLLM) -> None:
    """Have `engine` refuse sequences that would end its core, and forget sequences that were not sent.

    vLLM's front end registers a sequence, then packs and sends it. A registered sequence that was not sent
    would wait for ever, and the engine would seem to hang.
    """
    processor = engine.output_processor
    bounded = bool(getattr(engine.vllm_config, "use_v2_model_runner", False))

    async def forget(request: Any) -> None:
        state = processor.request_states.get(request.request_id)
        parent = getattr(state, "parent_req", None)
        await engine.abort(request.request_id if parent is None else parent.request_id, internal=True)

    def add_within_bounds(add: Method) -> Method:
        def wrapped(request: Any, *args: Any, **kwargs: Any) -> None:
            if bounded and request.sampling_params is not None:
                check_list_lengths(request.sampling_params)
            try:
                add(request, *args, **kwargs)
            except BaseException:
                processor.abort_requests([request.request_id], internal=True)
                raise

        return wrapped

    def send_or_forget(send: Method) -> Method:
        async def wrapped(request: Any) -> None:
            try:
                await send(request)
            except BaseException as error:  # a client that disconnects cancels the call
                await forget(request)
                if isinstance(error, _UNPACKABLE):
                    logger.warning("a request could not be packed for the engine core", exc_info=error)
                    raise VLLMValidationError(
                        f"The engine core cannot be sent this request: {error}"
                    ) from error
                raise

        return wrapped

    wrap_method(processor, "add_request", add_within_bounds)
    wrap_method(engine.engine_core, "add_request_async", send_or_forget)


def check_list_lengths(params: Any) -> None:
    """Refuse lists in sampling parameters that are too long for vLLM's GPU model runner.

    Raises:
        VLLMValidationError: with the field, its length and the bound.
    """
    for name, most in _LONGEST.items():
        _check_length(name, len(getattr(params, name) or ()), most, "tokens")
    if params.min_tokens > 0:
        stops = len(params.all_stop_token_ids)
        _check_length("stop_token_ids", stops, _MOST_STOP_TOKENS, "tokens with min_tokens")
    bad = sum(map(len, params.bad_words_token_ids or ()))
    most_bad: int = envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
    _check_length("bad_words", bad, most_bad, "tokens, of each word with and without a space")


def _check_length(name: str, length: int, most: int, of: str) -> None:
    if length > most:
        raise VLLMValidationError(f"{name}: {length} {of}; at most {most} are accepted", parameter=name)
