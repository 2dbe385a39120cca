from typing import Any

import pytest

from serve_app.api.engine_client import OPERATIONS
from serve_app.api.schemas import body_schema, component_schemas, generate_schema

OPENAI_OPERATIONS = [name for name in OPERATIONS if name != "generate"]


@pytest.mark.parametrize("operation", OPENAI_OPERATIONS)
def test_every_operation_has_a_body_that_is_described(operation: str) -> None:
    body = body_schema(operation)

    (content,) = body["content"].values()
    reference = content["schema"]["$ref"]
    assert body["required"] is True
    assert reference.removeprefix("#/components/schemas/") in component_schemas()


def resolved(operation: str) -> dict[str, Any]:
    """The schema of an operation's body, whatever references lead to it."""
    schema: dict[str, Any] = body_schema(operation)["content"]["application/json"]["schema"]
    while "$ref" in schema:
        schema = component_schemas()[schema["$ref"].rpartition("/")[2]]
    return schema


@pytest.mark.parametrize(
    ("operation", "field"),
    [("chat_completions", "messages"), ("completions", "prompt"), ("detokenize", "tokens")],
)
def test_the_bodies_are_those_of_their_operations(operation: str, field: str) -> None:
    assert field in resolved(operation)["properties"]


def test_generate_describes_itself_without_references() -> None:
    schema = generate_schema()["content"]["application/json"]["schema"]

    assert "$ref" not in str(schema)
    assert schema["additionalProperties"] is False
