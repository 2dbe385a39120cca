"""Bound the size of a structured output by counting: the first and cheapest check."""

import json
from dataclasses import dataclass
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams, check_json_nesting

from serve_app.settings.tree import StructuredOutputSettings

_KINDS = ("json", "regex", "choice", "grammar", "structural_tag")


@dataclass(slots=True)
class _Counts:
    properties: int = 0
    choices: int = 0


def check_size(params: StructuredOutputsParams, bounds: StructuredOutputSettings) -> None:
    """Refuse a structured output that is larger than `bounds`.

    Raises:
        VLLMValidationError: with the constraint, its size, the bound and the setting.
    """
    kind = next((name for name in _KINDS if getattr(params, name) is not None), None)
    if kind is None:
        return
    check_json_nesting(params.json)  # before any recursion
    check_json_nesting(params.structural_tag, structural_tag=True)
    spec = getattr(params, kind)
    text = spec if isinstance(spec, str) else json.dumps(spec, ensure_ascii=False)
    # Characters first, so that a text that is far too long is not encoded.
    size = len(text) if len(text) > bounds.max_bytes else len(text.encode("utf-8", "surrogatepass"))
    if size > bounds.max_bytes:
        raise _too_large(kind, f"{size} bytes", bounds.max_bytes, "max_bytes")
    if kind in ("json", "structural_tag"):
        counts = _counts(spec)
        if counts.properties > bounds.max_properties:
            raise _too_large(kind, f"{counts.properties} properties", bounds.max_properties, "max_properties")
    else:
        counts = _Counts(choices=len(spec) if kind == "choice" else 0)
    if counts.choices > bounds.max_choices:
        raise _too_large(kind, f"{counts.choices} choices", bounds.max_choices, "max_choices")


def _too_large(kind: str, size: str, bound: int, setting: str) -> VLLMValidationError:
    return VLLMValidationError(
        f"{kind}: {size}; at most {bound} are allowed (structured_output.{setting})", parameter=kind
    )


def _counts(spec: Any) -> _Counts:
    """Count the properties and enum values anywhere in a JSON schema."""
    counts = _Counts()
    if isinstance(spec, str):
        try:
            spec = json.loads(spec)
        except (ValueError, RecursionError):
            return counts  # the backend will refuse it
    waiting = [spec]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for key, value in node.items():
                if key in ("properties", "patternProperties") and isinstance(value, dict):
                    counts.properties += len(value)
                elif key == "enum" and isinstance(value, list):
                    counts.choices += len(value)
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return counts
