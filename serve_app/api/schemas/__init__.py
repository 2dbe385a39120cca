"""JSON schemas of the OpenAI request bodies, for the OpenAPI document.

`python -m tools.request_schemas` writes them from vLLM's models, so that the ingress need not import vLLM. A
test compares them with vLLM's models.
"""

from functools import cache
from importlib import resources
from typing import Any

import msgspec

from serve_app.api.engine_client import JSON, SPEECH_OPERATIONS, Operation
from serve_app.api.generate import GenerateRequest
from serve_app.api.upload import FORM


@cache
def _document() -> dict[str, Any]:
    text = resources.files(__name__).joinpath("bodies.json").read_bytes()
    document: dict[str, Any] = msgspec.json.decode(text)
    return document


def body_schema(operation: Operation) -> dict[str, Any]:
    """The OpenAPI `requestBody` of an operation."""
    reference = {"$ref": f"#/components/schemas/{_document()['bodies'][operation]}"}
    kind = FORM if operation in SPEECH_OPERATIONS else JSON
    return {"required": True, "content": {kind: {"schema": reference}}}


def generate_schema() -> dict[str, Any]:
    """The OpenAPI `requestBody` of `/generate`."""
    return {"required": True, "content": {JSON: {"schema": GenerateRequest.model_json_schema()}}}


def component_schemas() -> dict[str, Any]:
    """Every schema the bodies refer to, by name."""
    schemas: dict[str, Any] = _document()["schemas"]
    return schemas
