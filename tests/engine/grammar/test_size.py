import json

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from serve_app.engine.grammar.size import check_size
from serve_app.settings.tree import StructuredOutputSettings

BOUNDS = StructuredOutputSettings(max_bytes=1000, max_choices=3, max_properties=4)


def schema(count: int) -> dict:
    inner = {"type": "object", "properties": {str(i): {} for i in range(count - 2)}}
    return {"properties": {"a": inner}, "patternProperties": {"b": {}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "a" * 1000},
        {"choice": ["a"] * 3},
        {"json": schema(4)},
        {"json": json.dumps(schema(4))},
        {"json": {"anyOf": [{"enum": [1, 2]}, {"enum": [3]}]}},
        {"json_object": True},
        {"json": "not JSON"},
    ],
    ids=lambda fields: str(fields)[:30],
)
def test_what_is_at_a_bound_passes(fields: dict) -> None:
    check_size(StructuredOutputsParams(**fields), BOUNDS)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"regex": "a" * 1001}, r"regex: 1001 bytes; at most 1000 .*max_bytes"),
        ({"grammar": "é" * 501}, r"grammar: 1002 bytes; at most 1000 .*max_bytes"),
        ({"choice": ["a"] * 4}, r"choice: 4 choices; at most 3 .*max_choices"),
        ({"json": schema(5)}, r"json: 5 properties; at most 4 .*max_properties"),
        ({"json": json.dumps(schema(5))}, r"json: 5 properties; at most 4 .*max_properties"),
        ({"json": {"anyOf": [{"enum": [1, 2]}, {"enum": [3, 4]}]}}, r"json: 4 choices; at most 3"),
        ({"structural_tag": json.dumps({"format": schema(5)})}, r"structural_tag: 5 properties"),
        ({"json": "[" * 900 + "]" * 900}, r"nested too deeply"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refusal_names_size_bound_and_setting(fields: dict, said: str) -> None:
    with pytest.raises(VLLMValidationError, match=said):
        check_size(StructuredOutputsParams(**fields), BOUNDS)
