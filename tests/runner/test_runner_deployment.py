from dataclasses import replace
from typing import Any

import pytest

from serve_app.batch.records import Batch
from serve_app.runner.runner_deployment import batch_span
from serve_app.wire.spans import batch_root

NOW = 1_800_000_000
ENDED = Batch(
    "batch_1",
    "night",
    "/v1/completions",
    "file-1",
    "24h",
    "completed",
    NOW,
    NOW + 86_400,
    model="tide",
    completed_at=NOW + 60,
    total=5,
    completed=4,
    failed=1,
    input_tokens=70,
)


def test_span_of_a_batch_has_its_time_and_numbers() -> None:
    span = batch_span(ENDED)

    assert (span.name, span.trace_id, span.span_id) == ("batch", *_ids("batch_1"))
    assert (span.start, span.end - span.start, span.error) == (NOW * 10**9, 60 * 10**9, "")
    assert span.attributes == {
        "tideserve.batch.id": "batch_1",
        "http.route": "/v1/completions",
        "gen_ai.request.model": "tide",
        "tideserve.key": "night",
        "tideserve.outcome": "completed",
        "tideserve.batch.lines": 5,
        "tideserve.batch.failed_lines": 1,
        "gen_ai.usage.input_tokens": 70,
    }


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"status": "failed", "failed_at": NOW + 1, "model": None, "owner": ""}, "failed"),
        ({"status": "expired", "expired_at": NOW + 1}, "expired"),
        ({"status": "cancelled", "cancelled_at": NOW + 1}, ""),
    ],
)
def test_span_of_a_batch_says_whether_it_failed(changed: dict[str, Any], error: str) -> None:
    span = batch_span(replace(ENDED, **changed))

    assert (span.error, span.attributes["tideserve.outcome"]) == (error, changed["status"])
    assert span.end == (NOW + 1) * 10**9


def _ids(batch_id: str) -> tuple[str, str]:
    root = batch_root(batch_id)
    return root.trace_id, root.span_id
