"""Bounds that vLLM leaves open, checked before a request may reach the engine core.

A value that fails only inside the engine core can end the whole replica, so every value that the core
uses as an index or a size is bounded here.
"""

from typing import Any

from serve_app.api.errors import ApiError
from serve_app.settings.settings_error import shown


def reject(param: str, value: Any, bound: str) -> ApiError:
    """Return a 400 that names the field, the value and the bound."""
    return ApiError(400, f"{param} = {shown(value)}: {bound}", param=param, code="invalid_value")


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
