"""Schemathesis over the OpenAPI document: what fits the schemas, or just misses, gets a documented answer.

No answer is a 5xx. Its status, its content type and the shape of an error are those of the document.
"""

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.integration.cluster import Running

EXAMPLES = 5
"""For each path and mode: `make fuzz` sends more."""
OTHER_NAMES = {"POST /score", "POST /rerank", "POST /v2/rerank"}
"""Paths with the handler and the schema of another one get a few examples."""


def bounded(body):
    """Keep one example from generating 2,000 tokens 64 times; the bounds have tests of their own."""
    if isinstance(body, dict) and "knobs" not in body:
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(body.get(name), int) and body[name] > 8:
                body[name] = 8
        if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
            body["max_tokens"] = 8
        if body.get("max_output_tokens") is None:
            body["max_output_tokens"] = 8
        if isinstance(body.get("n"), int) and body["n"] > 4:
            body["n"] = 4
    return body


OPERATIONS = [
    "POST /v1/chat/completions",
    "POST /v1/responses",
    "POST /v1/completions",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/embeddings",
    "POST /v1/score",
    "POST /score",
    "POST /v1/rerank",
    "POST /v2/rerank",
    "POST /rerank",
    "POST /classify",
    "POST /pooling",
    "POST /v1/audio/transcriptions",
    "POST /v1/audio/translations",
    "POST /tokenize",
    "POST /detokenize",
    "POST /generate",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "GET /health",
    "GET /version",
    "GET /ready",
    "GET /metrics",
    "GET /autoscaling/decisions",
    "GET /autoscaling/knobs",
    "POST /autoscaling/knobs",
    "GET /usage",
    "POST /v1/files",
    "GET /v1/files",
    "GET /v1/files/{file_id}",
    "GET /v1/files/{file_id}/content",
    "DELETE /v1/files/{file_id}",
    "POST /v1/batches",
    "GET /v1/batches",
    "GET /v1/batches/{batch_id}",
    "POST /v1/batches/{batch_id}/cancel",
]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = "GET /autoscaling/events"
"""It takes no parameters, and its answer does not end."""


@pytest.fixture(scope="module")
def operations(app: Running) -> dict:
    schema = schemathesis.openapi.from_url(f"{app.url}/openapi.json")
    found = [result.ok() for result in schema.get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


def test_every_operation_is_fuzzed(operations: dict) -> None:
    assert set(operations) - {ENDLESS} == set(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    "mode",
    [
        schemathesis.GenerationMode.NEGATIVE,
        pytest.param(schemathesis.GenerationMode.POSITIVE, marks=pytest.mark.long),
    ],
)
def test_every_answer_is_a_documented_one(operations: dict, name: str, mode) -> None:
    operation = operations[name]

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=EXAMPLES // 4 if name in OTHER_NAMES else EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def check(case) -> None:
        case.body = bounded(case.body)
        case.call_and_validate(checks=CHECKS, timeout=60)

    try:
        check()
    except hypothesis.errors.Unsatisfiable:
        assert mode is schemathesis.GenerationMode.NEGATIVE  # nothing about a bare GET can be wrong
