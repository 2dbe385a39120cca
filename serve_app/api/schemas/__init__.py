"""JSON schemas of request bodies, and the answers of every operation, for the OpenAPI document.

`python -m tools.request_schemas` writes the schemas of bodies from vLLM's models, so that the ingress need
not import vLLM. A test compares them with vLLM's models.
"""

from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import Any

import msgspec

from serve_app.api.dialect import JSON, MESSAGES, dialect_at
from serve_app.api.engine_client import SPEECH_OPERATIONS, Operation
from serve_app.api.generate_body import GenerateRequest
from serve_app.api.upload import FORM


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


_TEXT: dict[str, Any] = {"type": "string"}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_ERROR = _object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)
_ERRORS = {
    "Error": _object(error=_ERROR),
    "InvalidError": _object(error=_ERROR, detail={"type": "array", "items": {"type": "object"}}),
    "MessageError": _object(
        type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT), request_id=_TEXT
    ),
}


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


def describe_errors(document: dict[str, Any], open_paths: frozenset[str], *, has_keys: bool) -> None:
    """Add every status of an error to the operations of an OpenAPI document, with the error's schema.

    Args:
        document: The document, which is changed.
        open_paths: The paths that need no API key.
        has_keys: Whether the other paths need one.
    """
    document["components"]["schemas"] |= _ERRORS
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            answers.pop("422", None)  # FastAPI's own, in whose place the application answers
            statuses = _error_statuses(path, operation)
            if method != "get":
                statuses.add(403)  # for web pages that may not use the server
            if has_keys and path not in open_paths:
                statuses |= {401, 403}
            for status in statuses.union(int(each) for each in answers if each >= "400"):
                of_path = "MessageError" if dialect_at(path) is MESSAGES else "Error"
                schema = "InvalidError" if status == 422 else of_path
                answer = answers.setdefault(str(status), {"description": HTTPStatus(status).phrase})
                answer.setdefault("content", {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}})
            operation["responses"] = dict(sorted(answers.items()))


def _error_statuses(path: str, operation: dict[str, Any]) -> set[int]:
    """Return the statuses that follow from a path and its parameters. Routes declare their others."""
    found = {421, 429, 500, 503}  # 429: answers that nobody reads fill the memory
    of_batches = path.startswith(("/v1/files", "/v1/batches"))
    if of_batches:
        found.add(507)
    if "requestBody" in operation:
        found |= {400, 408, 413, 415} if of_batches else {400, 404, 408, 413, 415}
    places = {parameter["in"] for parameter in operation.get("parameters", ())}
    if "query" in places or path == "/generate":
        found.add(400 if path.startswith("/v1/") else 422)
    if "path" in places:
        found.add(404)
    return found
